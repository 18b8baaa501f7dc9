/* Loaded with RTLD_DEEPBIND: its names are those of the libraries that it names itself, before anybody else's. */
#include <pthread.h>
#include <unistd.h>

ssize_t deep_read(int fd, void* buffer, size_t length) { return read(fd, buffer, length); }
int deep_lock(pthread_mutex_t* m) { return pthread_mutex_lock(m); }
int deep_unlock(pthread_mutex_t* m) { return pthread_mutex_unlock(m); }
