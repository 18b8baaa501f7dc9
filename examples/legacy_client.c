/* A load client for legacy_server that checks every answer.
 *
 *   legacy_client PORT CONNECTIONS ROUNDS [PID [SECONDS]]
 *
 * It opens all connections before the first request goes out and keeps all of them open until the
 * last answer is in. Each connection sends ROUNDS requests, a mix of all kinds, one at a time. With
 * the PID of the server (0: none) it watches the number of that process's kernel threads meanwhile.
 * SECONDS (default 20) bounds the whole run; what is unanswered by then counts as wrong.
 *
 * Prints one key=value a line; says on stderr what was wrong. Exits with 0 only if all connections
 * were open at once and all answers right. It has to be the only client of the server: the answers
 * to COUNT are checked to be consecutive. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "legacy_protocol.h"

enum kind { SUM, SLOW, COUNT, ORDER, KINDS };

struct connection {
    int fd; /* -1: lost */
    int round;
    enum kind kind;
    int waiting;
    uint64_t expected; /* for COUNT: the last one seen here, the next must be larger */
    uint64_t last_count;
    double sent;
    size_t size;
    char in[64];
};

static struct connection *connections;
static int total, rounds, running;
static int open_now, peak_open, peak_kernel_threads;
static long server_pid;
static uint64_t wrong;
static uint64_t *counts;
static size_t counted;
static double *latencies;
static size_t answered;
static double deadline;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Every fault is counted, a handful is shown: when a server breaks, all answers are wrong. */
static void report(const char *what, const struct connection *c, const char *detail)
{
    if (++wrong <= 5)
        fprintf(stderr, "legacy_client: %s: connection %d round %d: %s\n", what,
                (int)(c - connections), c->round, detail);
}

static void lose(struct connection *c, const char *why)
{
    report("lost", c, why);
    close(c->fd);
    c->fd = -1;
    open_now--;
    if (c->round < rounds)
        running--;
}

/* One after the other, and blocking: a connect on loopback takes microseconds unless the queue of
 * the listener is full, and then there is no sense in adding more to it. */
static int open_all(int port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };

    for (int i = 0; i < total; i++) {
        double left = deadline - now();
        struct timeval limit = {(time_t)left, 1000};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (left <= 0) {
            errno = ETIMEDOUT;
            fd = -1;
        }
        /* The send timeout is what bounds connect. */
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
            connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
            fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
            fprintf(stderr, "legacy_client: connection %d: %s\n", i, strerror(errno));
            return -1;
        }
        connections[i].fd = fd;
        peak_open = ++open_now;
    }
    return 0;
}

static void send_next(struct connection *c)
{
    int index = (int)(c - connections);
    uint64_t n = (uint64_t)index * (uint64_t)rounds + (uint64_t)c->round;
    char line[96];
    int size = 0;

    c->kind = (enum kind)((index + c->round) % KINDS);
    switch (c->kind) {
    case SUM:
        size = snprintf(line, sizeof line, "SUM %" PRIu64 " %" PRIu64 "\n", n, n * 7 + 1);
        c->expected = n + n * 7 + 1;
        break;
    case SLOW:
        size = snprintf(line, sizeof line, "SLOW %" PRIu64 "\n", n);
        c->expected = slow_answer(n);
        break;
    case ORDER:
        size = snprintf(line, sizeof line, "ORDER %" PRIu64 "\n", n);
        c->expected = order_answer(n);
        break;
    case COUNT:
    case KINDS:
        size = snprintf(line, sizeof line, "COUNT\n");
        c->expected = c->last_count;
        break;
    }
    c->sent = now();
    c->waiting = 1;
    /* One short line and nothing else under way: a socket that does not take it whole is broken. */
    if (send(c->fd, line, (size_t)size, MSG_NOSIGNAL) != size)
        lose(c, strerror(errno));
}

static void check_answer(struct connection *c, const char *line)
{
    uint64_t value;
    int right = 0;
    char end;

    if (!c->waiting) {
        lose(c, "an answer that nobody asked for");
        return;
    }
    if (sscanf(line, "OK %" SCNu64 "%c", &value, &end) == 1) {
        if (c->kind == COUNT) {
            right = value > c->expected;
            c->last_count = value;
            counts[counted++] = value;
        } else {
            right = value == c->expected;
        }
    }
    if (!right)
        report("wrong answer", c, line);
    latencies[answered++] = now() - c->sent;
    c->waiting = 0;
    if (++c->round < rounds)
        send_next(c);
    else
        running--;
}

static void receive(struct connection *c)
{
    while (c->fd >= 0) {
        ssize_t n = recv(c->fd, c->in + c->size, sizeof c->in - c->size, 0);
        char *newline;

        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            lose(c, n == 0 ? "closed by the server" : strerror(errno));
            return;
        }
        c->size += (size_t)n;
        while (c->fd >= 0 && (newline = memchr(c->in, '\n', c->size)) != NULL) {
            char line[sizeof c->in];
            size_t length = (size_t)(newline - c->in);

            memcpy(line, c->in, length);
            line[length] = '\0';
            c->size -= length + 1;
            memmove(c->in, newline + 1, c->size);
            check_answer(c, line);
        }
        if (c->fd >= 0 && c->size == sizeof c->in)
            lose(c, "an answer without an end");
    }
}

/* Only a figure taken while every connection is open says something. */
static void sample_threads(void)
{
    char path[64], line[256];
    int threads;
    FILE *status;

    if (server_pid == 0 || open_now < total)
        return;
    snprintf(path, sizeof path, "/proc/%ld/status", server_pid);
    status = fopen(path, "re");
    if (status == NULL)
        return;
    while (fgets(line, sizeof line, status) != NULL) {
        if (sscanf(line, "Threads: %d", &threads) == 1 && threads > peak_kernel_threads)
            peak_kernel_threads = threads;
    }
    fclose(status);
}

static void drive(void)
{
    struct epoll_event events[256];
    double next_sample = 0;
    int poller = epoll_create1(EPOLL_CLOEXEC);

    if (poller < 0) {
        perror("legacy_client: epoll_create1");
        exit(1);
    }
    running = total;
    for (int i = 0; i < total; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, connections[i].fd, &event) != 0) {
            perror("legacy_client: epoll_ctl");
            exit(1);
        }
    }
    for (int i = 0; i < total; i++)
        send_next(&connections[i]);
    while (running > 0 && now() < deadline) {
        int n = epoll_wait(poller, events, 256, 10);

        for (int i = 0; i < n; i++)
            receive(events[i].data.ptr);
        if (now() >= next_sample) {
            sample_threads();
            next_sample = now() + 0.01;
        }
    }
    sample_threads();
    for (int i = 0; i < total; i++) {
        if (connections[i].fd >= 0 && connections[i].round < rounds)
            report("out of time", &connections[i], "no answer");
    }
    close(poller);
}

static int compare_counts(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int compare_latencies(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A mutex that lets two through at once gives a number twice, or skips one. */
static void check_counts(void)
{
    qsort(counts, counted, sizeof *counts, compare_counts);
    for (size_t i = 1; i < counted; i++) {
        if (counts[i] != counts[i - 1] + 1 && ++wrong <= 5)
            fprintf(stderr, "legacy_client: COUNT gave %" PRIu64 " and then %" PRIu64 "\n",
                    counts[i - 1], counts[i]);
    }
}

static double percentile_ms(double share)
{
    if (answered == 0)
        return 0;
    return latencies[(size_t)((double)(answered - 1) * share)] * 1e3;
}

static long number(const char *text, long low, long high)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (end == text || *end != '\0' || value < low || value > high) {
        fprintf(stderr, "usage: legacy_client PORT CONNECTIONS ROUNDS [PID [SECONDS]]\n");
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    struct rlimit files;
    double start, seconds;

    if (argc < 4 || argc > 6)
        number("", 0, 0);
    int port = (int)number(argv[1], 1, 65535);
    total = (int)number(argv[2], 1, 60000);
    rounds = (int)number(argv[3], 1, 10000);
    server_pid = argc > 4 ? number(argv[4], 0, 1L << 30) : 0;
    deadline = now() + (double)(argc > 5 ? number(argv[5], 1, 3600) : 20);

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    size_t requests = (size_t)total * (size_t)rounds;
    connections = calloc((size_t)total, sizeof *connections);
    counts = calloc(requests, sizeof *counts);
    latencies = calloc(requests, sizeof *latencies);
    if (connections == NULL || counts == NULL || latencies == NULL) {
        perror("legacy_client");
        return 1;
    }

    int connected = open_all(port) == 0;
    start = now();
    if (connected)
        drive();
    seconds = now() - start;
    check_counts();
    qsort(latencies, answered, sizeof *latencies, compare_latencies);

    printf("connections=%d\nrequests=%zu\nwrong=%" PRIu64 "\npeak_open=%d\n"
           "peak_kernel_threads=%d\nseconds=%.2f\np50_ms=%.2f\np99_ms=%.2f\n",
           total, answered, wrong, peak_open, peak_kernel_threads, seconds, percentile_ms(0.50),
           percentile_ms(0.99));
    return connected && wrong == 0 ? 0 : 1;
}
