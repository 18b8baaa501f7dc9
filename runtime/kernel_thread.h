// Kernel threads for workers, made without glibc's pthread_create.
#pragma once
#include "runtime/lock.h"

namespace vthr {

// Starts a detached kernel thread that calls start(arg) and ends when that returns. It allocates nothing from the program,
// inherits the caller's signal mask and descriptors, and has a TCB on glibc's list, so that set*id reaches it.
// False: refused by the kernel. Threads of ours, after tls_measure_on_worker().
bool kernel_thread_start(void* (*start)(void*), void* arg);

// Held while such a thread is made, and by set*id calls: none is born with the old ids behind their back.
extern Lock kernel_threads_lock;

void kernel_threads_after_fork();

}  // namespace vthr
