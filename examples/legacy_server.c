/* A server as they were written for thirty years: one thread for each connection, plain blocking
 * calls, a mutex, a condition variable, a dependency that takes its time.
 *
 *   legacy_server [PORT [DELAY_MS [POOL]]]
 *
 * PORT 0 (the default) takes a free one. DELAY_MS is what the dependency needs for an answer
 * (default 100), POOL the number of worker threads for orders (default 8). It prints
 *
 *   listening PORT
 *   admin PORT
 *
 * and serves the protocol of legacy_protocol.h on the first. On the second, STATS answers with
 * counters and QUIT ends the program. Both are on the loopback interface only. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "legacy_protocol.h"

/* A burst of connections must not meet a full queue: a dropped SYN costs its client a second. */
#define BACKLOG 4096
#define LINE 256

struct service {
    int listener;
    int port;
    void *(*handler)(void *);
};

static struct service dependency;
static int delay_ms = 100;

static pthread_mutex_t stats_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t requests;
    int open;
    int peak_open;
} stats;

static pthread_mutex_t counter_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t counter;

/* ---- small things ------------------------------------------------------------------------ */

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void pause_ms(int ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* Returns an error number: a connection is refused when it fails, a start-up ends. */
static int start_thread(void *(*function)(void *), void *argument)
{
    pthread_attr_t attr;
    pthread_t thread;
    int error;

    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    error = pthread_create(&thread, &attr, function, argument);
    pthread_attr_destroy(&attr);
    return error;
}

static void must_start_thread(void *(*function)(void *), void *argument)
{
    errno = start_thread(function, argument);
    if (errno != 0)
        die("pthread_create");
}

static int write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

struct reader {
    int fd;
    size_t begin, end;
    char data[LINE];
};

/* The next line without its end, or NULL when there is none: the peer left, or sends no line that
 * fits. It stays valid until the next call. */
static char *read_line(struct reader *in)
{
    for (;;) {
        char *line = in->data + in->begin;
        char *newline = memchr(line, '\n', in->end - in->begin);
        if (newline != NULL) {
            *newline = '\0';
            in->begin = (size_t)(newline - in->data) + 1;
            return line;
        }
        memmove(in->data, line, in->end - in->begin);
        in->end -= in->begin;
        in->begin = 0;
        if (in->end == sizeof in->data)
            return NULL;
        ssize_t n = read(in->fd, in->data + in->end, sizeof in->data - in->end);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return NULL;
        in->end += (size_t)n;
    }
}

/* ---- the slow dependency ----------------------------------------------------------------- */

/* In real life another machine. Here a second service of the same kind, reached by TCP all the
 * same, so that the caller waits in connect and read as it would there. */
static void *dependency_connection(void *argument)
{
    struct reader in = {.fd = (int)(intptr_t)argument};
    char *line;

    pthread_setname_np(pthread_self(), "dependency");
    while ((line = read_line(&in)) != NULL) {
        char answer[LINE];
        uint64_t n = strtoull(line, NULL, 10);

        pause_ms(delay_ms);
        int size = snprintf(answer, sizeof answer, "%" PRIu64 "\n", slow_answer(n));
        if (write_all(in.fd, answer, (size_t)size) != 0)
            break;
    }
    close(in.fd);
    return NULL;
}

static int ask_dependency(uint64_t n, uint64_t *answer)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)dependency.port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    struct reader in = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    char question[LINE];
    char *line;

    if (in.fd < 0)
        return -1;
    int size = snprintf(question, sizeof question, "%" PRIu64 "\n", n);
    if (connect(in.fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        write_all(in.fd, question, (size_t)size) != 0 || (line = read_line(&in)) == NULL) {
        close(in.fd);
        return -1;
    }
    *answer = strtoull(line, NULL, 10);
    close(in.fd);
    return 0;
}

/* ---- the worker pool --------------------------------------------------------------------- */

struct order {
    uint64_t x, answer;
    int done;
    pthread_cond_t finished;
    struct order *next;
};

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pool_work = PTHREAD_COND_INITIALIZER;
static struct order *pool_first, **pool_last = &pool_first;

static void *pool_worker(void *unused)
{
    pthread_setname_np(pthread_self(), "pool");
    pthread_mutex_lock(&pool_lock);
    for (;;) {
        struct order *order;

        while ((order = pool_first) == NULL)
            pthread_cond_wait(&pool_work, &pool_lock);
        pool_first = order->next;
        if (pool_first == NULL)
            pool_last = &pool_first;
        pthread_mutex_unlock(&pool_lock);

        order->answer = order_answer(order->x);

        /* Signalled under the lock: the order is on the stack of its owner, who may return, and
         * take the condition variable along, as soon as the lock is free. */
        pthread_mutex_lock(&pool_lock);
        order->done = 1;
        pthread_cond_signal(&order->finished);
    }
    return unused;
}

static uint64_t run_order(uint64_t x)
{
    struct order order = {.x = x, .finished = PTHREAD_COND_INITIALIZER};

    pthread_mutex_lock(&pool_lock);
    *pool_last = &order;
    pool_last = &order.next;
    pthread_cond_signal(&pool_work);
    while (!order.done)
        pthread_cond_wait(&order.finished, &pool_lock);
    pthread_mutex_unlock(&pool_lock);
    pthread_cond_destroy(&order.finished);
    return order.answer;
}

/* ---- the clients ------------------------------------------------------------------------- */

static int answer_request(const char *line, char *answer, size_t room)
{
    uint64_t a, b, result;

    if (sscanf(line, "SUM %" SCNu64 " %" SCNu64, &a, &b) == 2) {
        result = a + b;
    } else if (sscanf(line, "SLOW %" SCNu64, &a) == 1) {
        if (ask_dependency(a, &result) != 0)
            return snprintf(answer, room, "ERR dependency\n");
    } else if (sscanf(line, "ORDER %" SCNu64, &a) == 1) {
        result = run_order(a);
    } else if (strcmp(line, "COUNT") == 0) {
        pthread_mutex_lock(&counter_lock);
        result = ++counter;
        pthread_mutex_unlock(&counter_lock);
    } else {
        return snprintf(answer, room, "ERR unknown request\n");
    }
    return snprintf(answer, room, "OK %" PRIu64 "\n", result);
}

static void *client_connection(void *argument)
{
    struct reader in = {.fd = (int)(intptr_t)argument};
    char *line;

    pthread_setname_np(pthread_self(), "conn");
    pthread_mutex_lock(&stats_lock);
    if (++stats.open > stats.peak_open)
        stats.peak_open = stats.open;
    pthread_mutex_unlock(&stats_lock);

    while ((line = read_line(&in)) != NULL) {
        char answer[LINE];
        int size = answer_request(line, answer, sizeof answer);

        /* Counted before the answer leaves, so that who has all answers sees them all in STATS. */
        pthread_mutex_lock(&stats_lock);
        stats.requests++;
        pthread_mutex_unlock(&stats_lock);
        if (write_all(in.fd, answer, (size_t)size) != 0)
            break;
    }

    close(in.fd);
    pthread_mutex_lock(&stats_lock);
    stats.open--;
    pthread_mutex_unlock(&stats_lock);
    return NULL;
}

/* ---- the administrator ------------------------------------------------------------------- */

static void print_total(void)
{
    pthread_mutex_lock(&stats_lock);
    printf("served %" PRIu64 "\n", stats.requests);
    pthread_mutex_unlock(&stats_lock);
}

static void *admin_connection(void *argument)
{
    int fd = (int)(intptr_t)argument;
    FILE *in = fdopen(fd, "r");
    char line[LINE];

    pthread_setname_np(pthread_self(), "admin");
    if (in == NULL) {
        close(fd);
        return NULL;
    }
    while (fgets(line, sizeof line, in) != NULL) {
        line[strcspn(line, "\r\n")] = '\0';
        if (strcmp(line, "STATS") == 0) {
            pthread_mutex_lock(&stats_lock);
            uint64_t requests = stats.requests;
            int peak = stats.peak_open, open = stats.open;
            pthread_mutex_unlock(&stats_lock);
            dprintf(fd, "requests=%" PRIu64 " peak_connections=%d open=%d\n", requests, peak, open);
        } else if (strcmp(line, "QUIT") == 0) {
            dprintf(fd, "BYE\n");
            exit(0);
        } else {
            dprintf(fd, "ERR unknown command\n");
        }
    }
    fclose(in);
    return NULL;
}

/* ---- the vendor's library ---------------------------------------------------------------- */

/* Stands for code that came without source and does not go through libc for its system calls.
 * Not inlined: it should show under its own name in a debugger. */
__attribute__((noinline)) static void vendor_poll(void)
{
    struct timespec wait = {0, 200 * 1000000L};
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"((long)SYS_nanosleep), "D"(&wait), "S"(NULL)
                     : "rcx", "r11", "memory");
    (void)result;
}

static void *vendor_thread(void *unused)
{
    pthread_setname_np(pthread_self(), "vendor");
    for (;;) {
        vendor_poll();
        pause_ms(300);
    }
    return unused;
}

/* ---- start-up ---------------------------------------------------------------------------- */

static void listen_on(struct service *service, int port, void *(*handler)(void *))
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    socklen_t size = sizeof address;
    int on = 1;

    service->handler = handler;
    service->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (service->listener < 0)
        die("socket");
    setsockopt(service->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(service->listener, (struct sockaddr *)&address, sizeof address) != 0)
        die("bind");
    if (listen(service->listener, BACKLOG) != 0)
        die("listen");
    if (getsockname(service->listener, (struct sockaddr *)&address, &size) != 0)
        die("getsockname");
    service->port = ntohs(address.sin_port);
}

static void *accept_loop(void *argument)
{
    struct service *service = argument;

    for (;;) {
        int fd = accept4(service->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED)
                continue;
            /* Out of descriptors or memory: some connection will end and give one back. */
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                pause_ms(10);
                continue;
            }
            die("accept");
        }
        if (start_thread(service->handler, (void *)(intptr_t)fd) != 0)
            close(fd);
    }
    return NULL;
}

static int number(const char *text, int low, int high)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (end == text || *end != '\0' || value < low || value > high) {
        fprintf(stderr, "usage: legacy_server [PORT [DELAY_MS [POOL]]]\n");
        exit(2);
    }
    return (int)value;
}

int main(int argc, char **argv)
{
    static struct service clients, admin;
    int port = argc > 1 ? number(argv[1], 0, 65535) : 0;
    int pool = argc > 3 ? number(argv[3], 1, 1000) : 8;
    struct rlimit files;

    if (argc > 2)
        delay_ms = number(argv[2], 0, 60000);

    /* A slow request holds three descriptors: the client's, and both ends of the dependency's. */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    /* A client that left is an error of its connection, not the end of the server. */
    signal(SIGPIPE, SIG_IGN);
    atexit(print_total);

    listen_on(&dependency, 0, dependency_connection);
    listen_on(&clients, port, client_connection);
    listen_on(&admin, 0, admin_connection);

    for (int i = 0; i < pool; i++)
        must_start_thread(pool_worker, NULL);
    must_start_thread(vendor_thread, NULL);
    must_start_thread(accept_loop, &dependency);
    must_start_thread(accept_loop, &admin);

    printf("listening %d\nadmin %d\n", clients.port, admin.port);
    fflush(stdout);
    accept_loop(&clients);
    return 0;
}
