/* Agents exchange their metadata: each publishes its own and waits for those of the others, without polling.
 *
 *   agents HOST 0 prefill                      hosts the store and prints its port
 *   agents HOST PORT decode prefill            waits for the metadata of `prefill`
 *
 * The host stays until its standard input ends. */
#include <c10d.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Metadata of a real agent: registered memory, remote keys, addresses. */
static void describe(const char *name, char *metadata, size_t size) {
    snprintf(metadata, size, "agent %s: 2 regions, rkey 0x17", name);
}

static void check(c10d_status status) {
    if (status == C10D_OK) return;
    fprintf(stderr, "%s\n", c10d_last_error());
    exit(1);
}

static void publish(c10d_store *agents, const char *name) {
    char metadata[256];
    describe(name, metadata, sizeof metadata);
    check(c10d_store_set(agents, name, strlen(name), metadata, strlen(metadata)));
}

/* Waits until the other agent has published, for at most 30 s. */
static void fetch(c10d_store *agents, const char *name) {
    c10d_buffer metadata;
    check(c10d_store_get(agents, name, strlen(name), 30000, NULL, &metadata));
    printf("%.*s\n", (int)metadata.len, metadata.data);
    c10d_buffer_free(&metadata);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s HOST PORT NAME [OTHER_NAME...]\n", argv[0]);
        return 2;
    }
    const char *host = argv[1];
    uint16_t port = (uint16_t)strtoul(argv[2], NULL, 10);
    int is_host = port == 0;
    c10d_store *store;
    c10d_store *agents;
    if (is_host) {
        check(c10d_store_open_master(host, 0, NULL, &store));
        check(c10d_store_port(store, &port));
        printf("%u\n", (unsigned)port);
        fflush(stdout);
    } else {
        check(c10d_store_connect(host, port, NULL, &store));
    }
    check(c10d_store_open_prefix(store, "agents", strlen("agents"), &agents));
    publish(agents, argv[3]);
    for (int i = 4; i < argc; i++) fetch(agents, argv[i]);
    if (is_host) {
        while (getchar() != EOF) {
        }
    }
    c10d_store_free(agents);
    c10d_store_free(store);
    return 0;
}
