/* Four ranks, each a thread, over one store. */
#include "check.h"

#include <pthread.h>

#define RANKS 4

struct rank {
    c10d_store *store;
    size_t number;
};

static void *run_rank(void *argument) {
    struct rank *rank = argument;
    c10d_group *group;
    size_t number = 99;
    size_t world_size = 99;
    OK(c10d_group_join("test", rank->store, rank->number, RANKS, NULL, &group));
    OK(c10d_group_rank(group, &number));
    OK(c10d_group_world_size(group, &world_size));
    CHECK(number == rank->number && world_size == RANKS);

    /* A value of a length that all know, as an NCCL id is. */
    unsigned char id[128];
    memset(id, number == 2 ? 0x5a : 0, sizeof id);
    OK(c10d_group_broadcast(group, 2, id, sizeof id, 60000, NULL));
    for (size_t i = 0; i < sizeof id; i++) CHECK(id[i] == 0x5a);
    OK(c10d_group_broadcast(group, 0, NULL, 0, C10D_DEFAULT, NULL));
    REFUSES("value is null", c10d_group_broadcast(group, 0, NULL, 8, C10D_DEFAULT, NULL));
    REFUSES("no rank 9", c10d_group_broadcast(group, 9, id, sizeof id, C10D_DEFAULT, NULL));

    /* Ranks that expect another length notice it, and the group goes on. */
    c10d_status expected = number == 1 ? C10D_OK : C10D_ERROR_MISMATCH;
    RETURNS(expected, c10d_group_broadcast(group, 1, id, number == 1 ? 64 : 128, 60000, NULL));
    if (number != 1) SAYS("value has 128 bytes, the value has 64");

    c10d_buffer any;
    OK(c10d_group_broadcast_any(group, 3, number == 3 ? "any length" : NULL, number == 3 ? 10 : 0, 60000,
                                NULL, &any));
    HOLDS(any, "any length");

    c10d_buffer_list values;
    char own[8];
    int own_len = snprintf(own, sizeof own, "r%zu", number);
    OK(c10d_group_all_gather(group, own, (size_t)own_len, 60000, NULL, &values));
    CHECK(values.len == RANKS && memcmp(values.items[3].data, "r3", 2) == 0);
    c10d_buffer_list_free(&values);
    OK(c10d_group_barrier(group, C10D_DEFAULT, NULL));

    /* Two groups of two; the first rank of each list is its rank 0. */
    c10d_group *pair;
    size_t lists[2][2] = {{2, 0}, {3, 1}};
    OK(c10d_group_split(group, number % 2 == 0 ? "even" : "odd", lists[number % 2], 2, 60000, NULL, &pair));
    size_t in_pair = 99;
    OK(c10d_group_rank(pair, &in_pair));
    CHECK(in_pair == (number >= 2 ? 0 : 1));
    OK(c10d_group_barrier(pair, 60000, NULL));
    c10d_group_free(pair);
    REFUSES("not among", c10d_group_split(group, "other", lists[(number + 1) % 2], 2, 60000, NULL, &pair));
    REFUSES("name is null", c10d_group_split(group, NULL, lists[0], 2, 60000, NULL, &pair));

    /* A handle to the same store. */
    c10d_store *store;
    OK(c10d_group_store(group, &store));
    OK(c10d_store_add(store, S("ranks"), 1, NULL));
    c10d_store_free(store);

    OK(c10d_group_finish(group, NULL));
    c10d_group_free(group);
    return NULL;
}

static void *meet_late(void *argument) {
    struct rank *rank = argument;
    c10d_group *group;
    OK(c10d_group_join("late", rank->store, rank->number, RANKS, NULL, &group));
    c10d_status status = C10D_OK;
    if (rank->number < 2) {
        /* Ranks 2 and 3 do not come: the error names them, and the same call can be made again. */
        RETURNS(C10D_ERROR_MISSING_RANKS, c10d_group_barrier(group, 1000, NULL));
        size_t count = 0;
        const size_t *missing = c10d_last_missing_ranks(&count);
        bool has_both = false;
        for (size_t i = 0; i + 1 < count; i++) has_both |= missing[i] == 2 && missing[i + 1] == 3;
        CHECK(has_both);
        c10d_cancel *cancel;
        OK(c10d_cancel_new(&cancel));
        OK(c10d_cancel_now(cancel));
        RETURNS(C10D_ERROR_INTERRUPTED, c10d_group_barrier(group, C10D_FOREVER, cancel));
        c10d_cancel_free(cancel);
        int64_t timed_out = 0;
        OK(c10d_store_add(rank->store, S("timed-out"), 1, &timed_out));
        if (timed_out == 2) OK(c10d_store_set(rank->store, S("both-timed-out"), S("1")));
        status = c10d_group_barrier(group, 60000, NULL);
    } else {
        /* They come when the others have timed out. */
        c10d_buffer both;
        OK(c10d_store_get(rank->store, S("both-timed-out"), 60000, NULL, &both));
        c10d_buffer_free(&both);
        status = c10d_group_barrier(group, 60000, NULL);
    }
    RETURNS(C10D_OK, status);
    c10d_group_free(group);
    return NULL;
}

struct canceller {
    c10d_group *group;
    c10d_cancel *cancel;
    c10d_status status;
};

static void *barrier_until_cancelled(void *argument) {
    struct canceller *canceller = argument;
    canceller->status = c10d_group_barrier(canceller->group, C10D_FOREVER, canceller->cancel);
    return NULL;
}

static void *join_first(void *argument) {
    c10d_group *group;
    OK(c10d_group_join("pair", ((struct rank *)argument)->store, 1, 2, NULL, &group));
    c10d_group_free(group);
    return NULL;
}

static void cancel_a_barrier(c10d_store *store) {
    struct canceller canceller = {.status = C10D_OK};
    struct rank other = {store, 1};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, join_first, &other) == 0);
    OK(c10d_group_join("pair", store, 0, 2, NULL, &canceller.group));
    CHECK(pthread_join(thread, NULL) == 0);
    OK(c10d_cancel_new(&canceller.cancel));
    CHECK(pthread_create(&thread, NULL, barrier_until_cancelled, &canceller) == 0);
    OK(c10d_cancel_now(canceller.cancel));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(canceller.status == C10D_ERROR_INTERRUPTED);
    c10d_cancel_free(canceller.cancel);
    c10d_group_free(canceller.group);
}

static void run_all(c10d_store *store, void *(*body)(void *)) {
    pthread_t threads[RANKS];
    struct rank ranks[RANKS];
    for (size_t i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){store, i};
        CHECK(pthread_create(&threads[i], NULL, body, &ranks[i]) == 0);
    }
    for (size_t i = 0; i < RANKS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void environment(void) {
    static const char *const variables[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
    c10d_group *group;
    size_t number = 99;
    for (size_t i = 0; i < 4; i++) unsetenv(variables[i]);
    unsetenv("MASTER_ADDR");
    RETURNS(C10D_ERROR_ENVIRONMENT, c10d_group_init_from_env(NULL, NULL, &group));
    CHECK(group == NULL);
    SAYS("RANK");
    RETURNS(C10D_ERROR_ENVIRONMENT, c10d_env_rank(&number));
    CHECK(number == 0);
    setenv("RANK", "three", 1);
    RETURNS(C10D_ERROR_ENVIRONMENT, c10d_env_rank(&number));
    SAYS("three");
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    setenv("LOCAL_RANK", "2", 1);
    setenv("LOCAL_WORLD_SIZE", "8", 1);
    OK(c10d_env_rank(&number));
    CHECK(number == 0);
    OK(c10d_env_world_size(&number));
    CHECK(number == 1);
    OK(c10d_env_local_rank(&number));
    CHECK(number == 2);
    OK(c10d_env_local_world_size(&number));
    CHECK(number == 8);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "0", 1);
    OK(c10d_group_init_from_env("alone", NULL, &group));
    OK(c10d_group_finish(group, NULL));
    c10d_group_free(group);
}

int main(void) {
    c10d_store *store;
    int64_t ranks = 0;
    OK(c10d_store_open_hash(NULL, &store));
    run_all(store, run_rank);
    run_all(store, meet_late);
    cancel_a_barrier(store);
    OK(c10d_store_add(store, S("ranks"), 0, &ranks));
    CHECK(ranks == RANKS);
    c10d_store_free(store);

    OK(c10d_store_open_master("127.0.0.1", 0, NULL, &store));
    run_all(store, run_rank);
    run_all(store, meet_late);
    cancel_a_barrier(store);
    c10d_store_free(store);
    environment();
    printf("groups: ok\n");
    return 0;
}
