// Descriptors of the runtime: high numbers, close-on-exec, hidden from the hooks of close and its like.
#pragma once

namespace vthr {

// Moves *where to a high number and remembers it as the runtime's. Both places are rewritten when the program wants that
// number (fd_make_room), at any moment: they are read anew for each use. Any thread.
void fd_adopt(int* where, int* where_too = nullptr);
// A copy of the program's `fd` under a number of ours, in *where, which fd_adopt's rules apply to. False: none is free.
bool fd_copy_own(int fd, int* where);
void fd_disown(
    int* where);  // closes it. Any thread; not one that a handler of the program may interrupt here

bool fd_is_ours(int fd);    // any thread
int fd_next_own(int from);  // the lowest of ours from that number on, or -1
bool fd_make_room(int fd);  // ours moves to another number: the program wants this one. False: none is free
void own_fds_after_fork();  // forked child: closes all that are left

}  // namespace vthr
