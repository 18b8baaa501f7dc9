/* The line protocol between legacy_server and its clients.
 *
 *   SUM a b    OK a+b
 *   SLOW n     OK slow_answer(n), worked out by the slow dependency
 *   COUNT      OK k, where k is one more than in the answer before it, whoever asked
 *   ORDER x    OK order_answer(x), worked out by the worker pool
 *
 * Anything else is answered by a line that begins with ERR. A client may send its next line before
 * it has the answer to the last one; answers come in the order of the requests.
 *
 * The two functions live here because a client has to be able to check every answer without
 * believing the server. */
#ifndef LEGACY_PROTOCOL_H
#define LEGACY_PROTOCOL_H

#include <stdint.h>

static inline uint64_t slow_answer(uint64_t n)
{
    return 3 * n + 1;
}

/* Several rounds, so that the answer of one order cannot pass for that of its neighbour. */
static inline uint64_t order_answer(uint64_t x)
{
    for (int round = 0; round < 16; round++) {
        x ^= x >> 29;
        x = x * UINT64_C(0x9e3779b97f4a7c15) + 1;
    }
    return x;
}

#endif
