// Gives one NCCL id to all ranks. Start it with:
//   c10d run --standalone --nproc-per-node 4 ./nccl_id
// Built with -DUSE_NCCL it draws a real id; otherwise 128 bytes stand in for one, which needs no GPU.
#include <c10d.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#ifdef USE_NCCL
#include <nccl.h>
#else
struct ncclUniqueId {
    char internal[128];
};
static void ncclGetUniqueId(ncclUniqueId *id) { std::memset(id->internal, 0x17, sizeof id->internal); }
#endif

static void check(c10d_status status) {
    if (status != C10D_OK) throw std::runtime_error(c10d_last_error());
}

struct GroupEnd {
    void operator()(c10d_group *group) const { c10d_group_free(group); }
};

static int run() {
    c10d_group *joined;
    check(c10d_group_init_from_env(nullptr, nullptr, &joined));
    const std::unique_ptr<c10d_group, GroupEnd> group(joined);
    std::size_t rank;
    std::size_t world_size;
    check(c10d_group_rank(group.get(), &rank));
    check(c10d_group_world_size(group.get(), &world_size));

    ncclUniqueId id{};
    if (rank == 0) ncclGetUniqueId(&id);
    // If a rank does not come within 60 s, the error names it.
    check(c10d_group_broadcast(group.get(), 0, &id, sizeof id, 60000, nullptr));
    // ncclCommInitRank(&communicator, world_size, id, rank);

    int sum = 0;
    for (const char byte : id.internal) sum += static_cast<unsigned char>(byte);
    std::printf("%s\n", ("rank " + std::to_string(rank) + " of " + std::to_string(world_size) + ": id with sum " +
                         std::to_string(sum))
                            .c_str());
    check(c10d_group_finish(group.get(), nullptr));
    return 0;
}

int main() {
    try {
        return run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
