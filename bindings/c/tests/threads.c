/* 32 threads share one handle; waits of some and openings are cancelled, and a close ends all. A wait costs no CPU. */
#define _GNU_SOURCE
#include "check.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define THREADS 32
#define ROUNDS 50

struct worker {
    c10d_store *store;
    c10d_cancel *cancel;
    int number;
    atomic_int *begun;
    long thread;
    c10d_status status;
    bool names_its_key;
    bool has_queues;
};

static void pause_ms(long ms) {
    struct timespec time = {0, ms * 1000000};
    nanosleep(&time, NULL);
}

static void *work(void *argument) {
    struct worker *worker = argument;
    char key[32];
    char next[32];
    for (int round = 0; round < ROUNDS; round++) {
        int len = snprintf(key, sizeof key, "t%d/%d", worker->number, round);
        int next_len = snprintf(next, sizeof next, "t%d/%d", (worker->number + 1) % THREADS, round);
        OK(c10d_store_add(worker->store, S("sum"), 1, NULL));
        OK(c10d_store_set(worker->store, key, (size_t)len, key, (size_t)len));
        c10d_buffer value;
        OK(c10d_store_get(worker->store, next, (size_t)next_len, 60000, NULL, &value));
        HOLDS(value, next);
    }
    OK(c10d_store_barrier(worker->store, S("end"), THREADS, 60000, NULL));
    /* The last error is this thread's own. */
    OK(c10d_store_set(worker->store, key, strlen(key), S("text")));
    RETURNS(C10D_ERROR_NOT_A_NUMBER, c10d_store_add(worker->store, key, strlen(key), 1, NULL));
    worker->names_its_key = strstr(c10d_last_error(), key) != NULL;
    return NULL;
}

static void share_one_handle(c10d_store *store) {
    pthread_t threads[THREADS];
    struct worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.store = store, .number = i};
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        CHECK(workers[i].names_its_key);
    }
    int64_t sum = 0;
    OK(c10d_store_add(store, S("sum"), 0, &sum));
    CHECK(sum == THREADS * ROUNDS);
}

static void *wait_long(void *argument) {
    struct worker *worker = argument;
    c10d_bytes key = bytes_of("never");
    c10d_buffer value;
    c10d_buffer_list values;
    worker->thread = syscall(SYS_gettid);
    atomic_fetch_add(worker->begun, 1);
    switch (worker->number % (worker->has_queues ? 6 : 5)) {
    case 0:
        worker->status = c10d_store_wait(worker->store, &key, 1, C10D_FOREVER, worker->cancel);
        break;
    case 1:
        worker->status = c10d_store_get(worker->store, S("never"), C10D_FOREVER, worker->cancel, &value);
        break;
    case 2:
        worker->status = c10d_store_multi_get(worker->store, &key, 1, 600000, worker->cancel, &values);
        break;
    case 3:
        worker->status =
            c10d_store_wait_change(worker->store, S("never"), NULL, 0, C10D_FOREVER, worker->cancel, &value);
        break;
    case 4:
        worker->status = c10d_store_barrier(worker->store, S("never-met"), 100, C10D_FOREVER, worker->cancel);
        break;
    default:
        worker->status = c10d_store_queue_pop(worker->store, S("never"), C10D_FOREVER, worker->cancel, &value);
        break;
    }
    return NULL;
}

/* Starts waits, of which the first half can be cancelled. */
static void start_waits(c10d_store *store, bool has_queues, c10d_cancel *cancel, int count, pthread_t *threads,
                        struct worker *workers, atomic_int *begun) {
    atomic_store(begun, 0);
    for (int i = 0; i < count; i++) {
        workers[i] = (struct worker){.store = store,
                                     .has_queues = has_queues,
                                     .number = i,
                                     .begun = begun,
                                     .cancel = i < count / 2 ? cancel : NULL};
        CHECK(pthread_create(&threads[i], NULL, wait_long, &workers[i]) == 0);
    }
    while (atomic_load(begun) < count) pause_ms(1);
}

/* How often a thread of this process has gone to sleep. */
static long sleeps(long thread) {
    char line[256];
    long count = -1;
    snprintf(line, sizeof line, "/proc/self/task/%ld/status", thread);
    FILE *status = fopen(line, "r");
    CHECK(status != NULL);
    while (count < 0 && fgets(line, sizeof line, status) != NULL) sscanf(line, "voluntary_ctxt_switches: %ld", &count);
    fclose(status);
    CHECK(count >= 0);
    return count;
}

/* Returns once the system has run none of the threads for a while, which ends the test if it does not happen. */
static void expect_no_thread_to_run(const struct worker *workers, int count) {
    for (int round = 0; round < 60; round++) {
        long before = 0, after = 0;
        for (int i = 0; i < count; i++) before += sleeps(workers[i].thread);
        /* Longer than any interval at which one of them has ever asked. */
        for (int i = 0; i < 12; i++) pause_ms(100);
        for (int i = 0; i < count; i++) after += sleeps(workers[i].thread);
        if (after == before) return;
    }
    FAIL("threads that wait are run");
}

static void cancel_half_and_close(c10d_store *store, bool has_queues) {
    enum { COUNT = 12 };
    pthread_t threads[COUNT];
    struct worker workers[COUNT];
    atomic_int begun;
    c10d_cancel *cancel;
    c10d_buffer value;
    OK(c10d_cancel_new(&cancel));
    OK(c10d_store_add(store, S("sum"), 1, NULL));
    start_waits(store, has_queues, cancel, COUNT, threads, workers, &begun);
    /* Other processes change a file, which its store has to look at. */
    if (has_queues) expect_no_thread_to_run(workers, COUNT);
    OK(c10d_cancel_now(cancel));
    OK(c10d_cancel_now(cancel));
    for (int i = 0; i < COUNT / 2; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        if (workers[i].status != C10D_ERROR_INTERRUPTED)
            FAIL("wait %d ended with %s", i, c10d_status_name((int32_t)workers[i].status));
    }
    /* The store is usable, and a cancelled handle refuses calls until it is reset. */
    RETURNS(C10D_ERROR_INTERRUPTED, c10d_store_get(store, S("sum"), 0, cancel, &value));
    OK(c10d_cancel_reset(cancel));
    OK(c10d_store_get(store, S("sum"), 0, cancel, &value));
    c10d_buffer_free(&value);
    RETURNS(C10D_ERROR_TIMEOUT, c10d_store_get(store, S("never"), 5, cancel, &value));

    OK(c10d_store_close(store));
    for (int i = COUNT / 2; i < COUNT; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        if (workers[i].status != C10D_ERROR_CLOSED)
            FAIL("wait %d ended with %s", i, c10d_status_name((int32_t)workers[i].status));
    }
    c10d_cancel_free(cancel);
}

/* Another client ends the waits for names with a prefix. */
static void end_all_waits(c10d_store *store, c10d_store *other) {
    enum { COUNT = 6 };
    pthread_t threads[COUNT];
    struct worker workers[COUNT];
    atomic_int begun;
    uint64_t count = 0;
    start_waits(store, true, NULL, COUNT, threads, workers, &begun);
    OK(c10d_store_end_waits(other, S("no wait has this prefix"), &count));
    CHECK(count == 0);
    for (int i = 0; i < COUNT; i++) {
        /* A wait that begins after it is not ended. */
        while (pthread_tryjoin_np(threads[i], NULL) != 0) {
            OK(c10d_store_end_waits(other, S("never"), NULL));
            pause_ms(1);
        }
        if (workers[i].status != C10D_ERROR_WAIT_ENDED)
            FAIL("wait %d ended with %s", i, c10d_status_name((int32_t)workers[i].status));
    }
    OK(c10d_store_set(store, S("still"), S("usable")));
}

struct opening {
    const char *path;
    c10d_store *other;
    c10d_options *options;
    uint16_t port;
    int number;
    c10d_status status;
};

/* Openings that never end by themselves. */
enum { OPENINGS = 5 };

static void *open_one(void *argument) {
    struct opening *opening = argument;
    c10d_store *store;
    c10d_group *group;
    switch (opening->number) {
    case 0:
        opening->status = c10d_store_connect("127.0.0.1", opening->port, opening->options, &store);
        break;
    case 1:
        opening->status = c10d_store_open_master("127.0.0.1", 0, opening->options, &store);
        break;
    case 2:
        opening->status = c10d_store_open_file(opening->path, opening->options, &store);
        break;
    case 3:
        opening->status = c10d_group_join("pair", opening->other, 0, 2, opening->options, &group);
        break;
    default:
        /* The port that no store listens on. */
        opening->status = c10d_group_init_from_env(NULL, opening->options, &group);
        break;
    }
    return NULL;
}

static void cancel_openings(const char *path) {
    pthread_t threads[OPENINGS];
    struct opening openings[OPENINGS];
    c10d_store *other;
    c10d_cancel *cancel;
    c10d_options *options;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    char port[8];
    int closed = socket(AF_INET, SOCK_STREAM, 0);
    int locked = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(bind(closed, (struct sockaddr *)&address, length) == 0);
    CHECK(getsockname(closed, (struct sockaddr *)&address, &length) == 0);
    CHECK(locked >= 0 && flock(locked, LOCK_EX) == 0);
    snprintf(port, sizeof port, "%d", ntohs(address.sin_port));
    CHECK(setenv("RANK", "1", 1) == 0 && setenv("WORLD_SIZE", "2", 1) == 0);
    CHECK(setenv("MASTER_ADDR", "127.0.0.1", 1) == 0 && setenv("MASTER_PORT", port, 1) == 0);
    OK(c10d_store_open_hash(NULL, &other));
    OK(c10d_cancel_new(&cancel));
    OK(c10d_options_new(&options));
    OK(c10d_options_set_world_size(options, 2));
    OK(c10d_options_set_cancel(options, cancel));
    for (int i = 0; i < OPENINGS; i++) {
        openings[i] = (struct opening){path, other, options, ntohs(address.sin_port), i, C10D_OK};
        CHECK(pthread_create(&threads[i], NULL, open_one, &openings[i]) == 0);
    }
    /* A call that begins after the cancel ends with the same status: the pause only lets most of them block. */
    pause_ms(100);
    OK(c10d_cancel_now(cancel));
    for (int i = 0; i < OPENINGS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        if (openings[i].status != C10D_ERROR_INTERRUPTED)
            FAIL("opening %d ended with %s", i, c10d_status_name((int32_t)openings[i].status));
    }
    c10d_cancel_free(cancel);
    c10d_options_free(options);
    c10d_store_free(other);
    CHECK(close(locked) == 0 && close(closed) == 0);
}

int main(void) {
    c10d_server *server;
    c10d_store *store;
    uint16_t port;
    OK(c10d_store_open_hash(NULL, &store));
    share_one_handle(store);
    cancel_half_and_close(store, true);
    c10d_store_free(store);

    OK(c10d_server_start("127.0.0.1", 0, NULL, &server));
    OK(c10d_server_port(server, &port));
    OK(c10d_store_connect("127.0.0.1", port, NULL, &store));
    share_one_handle(store);
    c10d_store *other;
    OK(c10d_store_clone(store, &other));
    end_all_waits(store, other);
    c10d_store_free(other);
    cancel_half_and_close(store, true);
    c10d_store_free(store);
    c10d_server_free(server);

    char folder[] = "/tmp/c10d-c-XXXXXX";
    char path[64];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/store", folder);
    cancel_openings(path);
    CHECK(remove(path) == 0);
    OK(c10d_store_open_file(path, NULL, &store));
    cancel_half_and_close(store, false);
    c10d_store_free(store);
    CHECK(remove(path) == 0 && remove(folder) == 0);
    printf("threads: ok\n");
    return 0;
}
