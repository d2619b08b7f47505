// A rank of a group, in C++17: takes part in a broadcast from each rank, an all-gather, a barrier and finish, and prints
// what it got as JSON, as python/group_member.py does.
//
// c++ -std=c++17 group_worker.cpp $(pkg-config --cflags --libs c10d)

#include <c10d.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr int64_t timeout_ms = 60'000;

void check(c10d_status status) {
    if (status != C10D_OK) {
        std::cerr << c10d_status_name(status) << ": " << c10d_last_error() << '\n';
        std::exit(1);
    }
}

std::string taken(c10d_buffer buffer) {
    std::string text(buffer.data, buffer.len);
    c10d_buffer_free(&buffer);
    return text;
}

}  // namespace

int main() {
    c10d_group *group = nullptr;
    check(c10d_group_init_from_env(nullptr, nullptr, &group));
    size_t rank = 0;
    size_t world_size = 0;
    check(c10d_group_rank(group, &rank));
    check(c10d_group_world_size(group, &world_size));

    std::vector<std::string> got;
    for (size_t root = 0; root < world_size; ++root) {
        const std::string value = "value of " + std::to_string(root);
        c10d_buffer received{};
        const bool is_root = root == rank;
        check(c10d_group_broadcast_any(group, root, is_root ? value.data() : nullptr, is_root ? value.size() : 0,
                                       timeout_ms, nullptr, &received));
        got.push_back(taken(received));
    }
    const std::string part = "part of " + std::to_string(rank);
    c10d_buffer_list parts{};
    check(c10d_group_all_gather(group, part.data(), part.size(), timeout_ms, nullptr, &parts));
    for (size_t index = 0; index < parts.len; ++index) {
        got.emplace_back(parts.items[index].data, parts.items[index].len);
    }
    c10d_buffer_list_free(&parts);
    check(c10d_group_barrier(group, timeout_ms, nullptr));
    check(c10d_group_finish(group, nullptr));
    c10d_group_free(group);

    std::cout << "{\"got\": [";
    for (size_t index = 0; index < got.size(); ++index) {
        std::cout << (index == 0 ? "" : ", ") << '"' << got[index] << '"';
    }
    std::cout << "]}" << std::endl;
}
