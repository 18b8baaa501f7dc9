/* tls_libraries.so.c with thread-local variables that are allocated when they are used. */
#define LARGE
#include "tls_libraries.so.c"
