#!/usr/bin/env bash
# Builds and installs the C library, then uses it as C and C++ programs do: bash bindings/c/test.sh
#
# Needs cargo, a C and a C++ compiler with AddressSanitizer, make and binutils. Uses valgrind and pkg-config if they
# are installed. Installs cbindgen and, if it is missing, CMake, each version once, under the user's cache folder.
#
# PROFILE   the profile of Cargo to build with; by default `optimized`, a release with symbols, as in other checks
# C10D      the command c10d, to start ranks with; by default the one that `cargo test` builds, if it is there
set -euo pipefail
exec </dev/null
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly CBINDGEN_VERSION=0.29.4
readonly CMAKE_VERSION=4.1.2
readonly CACHE="${XDG_CACHE_HOME:-${HOME:?HOME is not set}/.cache}/c10d"
readonly WARNINGS=(-pedantic -Wall -Wextra -Werror)
root=$(cd ../.. && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
profile=${PROFILE:-optimized}
c10d=${C10D:-$target/debug/c10d}

scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
prefix=$scratch/installed

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

say() {
    printf -- '-- %s\n' "$*"
}

limited() {
    timeout 120 "$@"
}

cbindgen=$CACHE/cbindgen-$CBINDGEN_VERSION/bin/cbindgen
if [ ! -x "$cbindgen" ]; then
    cargo install cbindgen --version "$CBINDGEN_VERSION" --locked --debug \
        --root "${cbindgen%/bin/cbindgen}" --config 'profile.dev.debug=false' --target-dir "$target/tools"
    rm -rf -- "$target/tools"
fi

say 'the header'
cp include/c10d.h "$scratch/committed.h"
mkdir -p "$target/$profile"
make -s header CBINDGEN="$cbindgen" PROFILE="$profile"
diff -u "$scratch/committed.h" include/c10d.h ||
    die 'include/c10d.h was not what cbindgen makes: commit the new one'

say 'installing'
# Neither the libraries nor the files beside them may name the staging folder.
make -s install PROFILE="$profile" DESTDIR="$scratch/staging" PREFIX=/opt/c10d
if grep -rqs "$scratch" "$scratch/staging"; then die 'an installed file names DESTDIR'; fi
make -s install PROFILE="$profile" PREFIX="$prefix"
shared=$prefix/lib/libc10d.so
static=$prefix/lib/libc10d.a
[ "$(readlink -f "$shared")" = "$(readlink -f "$prefix"/lib/libc10d.so.0)" ] || die 'libc10d.so is another file'
diff <(cd "$scratch/staging/opt/c10d" && find . | sort) <(cd "$prefix" && find . | sort)
readelf -d "$shared" | grep -q 'soname: \[libc10d.so.0\]' || die "$shared has another name"

# exported LIBRARY OPTION: the symbols that others can link with, without their versions.
exported() {
    nm "$2" --defined-only "$1" | awk 'NF == 3 && $2 != "A" { sub("@.*", "", $3); print $3 }' | sort
}

say 'exported symbols'
# Comments name functions of results with their parentheses, which are declared too.
grep -oE '\bc10d_[a-z_]+\(' include/c10d.h | tr -d '(' | sort -u >"$scratch/declared"
for each in "$shared -D" "$static -g"; do
    # shellcheck disable=SC2086
    exported $each >"$scratch/exported"
    diff "$scratch/declared" "$scratch/exported" || die "${each% *} exports other symbols than the header declares"
    printf '%s: %d symbols, %d KiB\n' "$(basename "${each% *}")" "$(wc -l <"$scratch/exported")" \
        $(($(stat -Lc %s "${each% *}") / 1024))
done

say 'the size in the README'
if [ "$profile" = optimized ]; then
    quoted=$(sed -nE 's/^which is .* of the ([0-9.]+) MB of the shared library\.$/\1/p' README.md)
    bytes=$(stat -Lc %s "$shared")
    awk -v quoted="$quoted" -v bytes="$bytes" 'BEGIN { exit !(bytes > quoted * 0.9e6 && bytes < quoted * 1.1e6) }' ||
        die "the README quotes $quoted MB for the shared library, which has $bytes bytes"
else
    say 'LEFT OUT: another profile'
fi

say 'what was released'
"${CC:-cc}" -std=c11 "${WARNINGS[@]}" -I"$prefix/include" -c tests/released.c -o "$scratch/released.o"

if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    read -ra compile < <(pkg-config --cflags c10d)
    read -ra link < <(pkg-config --libs c10d)
    # All but the library itself.
    read -ra needed < <(pkg-config --libs --static c10d | sed 's/-lc10d//')
else
    say 'LEFT OUT: pkg-config is not installed'
    compile=("-I$prefix/include")
    link=("-L$prefix/lib" -lc10d)
    needed=(-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc)
fi
link+=("-Wl,-rpath,$prefix/lib" -pthread)
c=("${CC:-cc}" -std=c11 -g "${WARNINGS[@]}" "${compile[@]}")
cxx=("${CXX:-c++}" -std=c++17 -g "${WARNINGS[@]}" "${compile[@]}")
# The tests call what POSIX adds to C.
test_c=("${c[@]}" -D_DEFAULT_SOURCE)
sanitized=("${test_c[@]}" -fsanitize=address -fno-omit-frame-pointer)

say 'examples'
"${c[@]}" examples/agents.c -o "$scratch/agents" "${link[@]}"
readelf -V "$scratch/agents" | grep -q 'Name: C10D_0.2 ' || die 'a program does not need the versions of its functions'
"${cxx[@]}" examples/nccl_id.cpp -o "$scratch/nccl_id" "${link[@]}"
"${cxx[@]}" examples/nccl_id.cpp -o "$scratch/nccl_id_static" "$static" "${needed[@]}"
sed -n '/^```c$/,/^```$/p' README.md | sed '1d;$d' >"$scratch/readme.c"
"${c[@]}" "$scratch/readme.c" -o "$scratch/readme" "${link[@]}"
[ "$(limited "$scratch/readme")" = 'epoch 3' ] || die 'the example of the README printed something else'

# serve NAME: starts an agent that hosts a store, and sets port. It ends with file descriptor 9.
serve() {
    rm -f -- "$scratch/hold" "$scratch/port"
    mkfifo "$scratch/hold" "$scratch/port"
    limited "$scratch/agents" 127.0.0.1 0 "$1" <"$scratch/hold" >"$scratch/port" &
    host=$!
    exec 9>"$scratch/hold"
    read -r port <"$scratch/port"
}

stop_serving() {
    exec 9>&-
    wait "$host"
}

serve prefill
# `decode` waits for an agent that starts after it.
limited "$scratch/agents" 127.0.0.1 "$port" decode prefill late 9>&- >"$scratch/decode" &
decode=$!
limited "$scratch/agents" 127.0.0.1 "$port" late decode 9>&- >"$scratch/late"
wait "$decode"
stop_serving
diff "$scratch/decode" <(printf 'agent %s: 2 regions, rkey 0x17\n' prefill late)
diff "$scratch/late" <(printf 'agent %s: 2 regions, rkey 0x17\n' decode)

# four PROGRAM: four ranks over the store of a launcher, which is an agent here.
four() {
    local rank ranks=()
    serve launcher
    for rank in 0 1 2 3; do
        RANK=$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port TORCHELASTIC_USE_AGENT_STORE=True \
            limited "$1" 9>&- >"$scratch/rank$rank" &
        ranks+=("$!")
    done
    for rank in "${ranks[@]}"; do wait "$rank"; done
    stop_serving
    cat "$scratch"/rank?
}

printf 'rank %d of 4: id with sum 2944\n' 0 1 2 3 >"$scratch/expected"
for program in nccl_id nccl_id_static; do
    four "$scratch/$program" | diff "$scratch/expected" -
done
if [ -x "$c10d" ]; then
    # A rank's line may stand behind its name.
    limited "$c10d" run --standalone --nproc-per-node 4 "$scratch/nccl_id" 2>"$scratch/launcher" |
        grep -o 'rank . of 4: id.*' | sort | diff "$scratch/expected" - || {
        cat "$scratch/launcher"
        die 'c10d run: the ranks printed something else'
    }
else
    say "LEFT OUT: the example under c10d run: $c10d is missing"
fi

say 'CMake'
cmake=$(command -v cmake || true)
if [ -z "$cmake" ]; then
    cmake=$CACHE/cmake-$CMAKE_VERSION/bin/cmake
    if [ ! -x "$cmake" ]; then
        python3 -m venv "${cmake%/bin/cmake}"
        "${cmake%cmake}python" -m pip install --no-input --disable-pip-version-check --quiet "cmake==$CMAKE_VERSION"
    fi
fi
# Where the folder has moved to.
cp -a "$prefix" "$scratch/moved"
"$cmake" -S tests/cmake -B "$scratch/cmake" -DCMAKE_PREFIX_PATH="$scratch/moved" >"$scratch/cmake.log" &&
    "$cmake" --build "$scratch/cmake" >>"$scratch/cmake.log" || {
    cat "$scratch/cmake.log"
    die 'the CMake project cannot be built'
}
grep -q "$scratch/moved" "$scratch/cmake/CMakeCache.txt" || die 'CMake has found another c10d'
readelf -d "$scratch/cmake/agents" | grep -q 'NEEDED.*libc10d.so.0' || die 'CMake linked another library'
four "$scratch/cmake/nccl_id" | diff "$scratch/expected" -

say 'tests'
# A fixed secret, for tests only.
(umask 077 && printf 'c10ds1_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9868wmkpl_\n' >"$scratch/secret")
tests=(operations arguments threads servers groups forks)
for test in "${tests[@]}"; do
    "${test_c[@]}" "tests/$test.c" -o "$scratch/$test" "${link[@]}"
    limited "$scratch/$test" "$scratch/secret"
done

say 'tests under AddressSanitizer, with the static library'
for test in "${tests[@]}"; do
    "${sanitized[@]}" "tests/$test.c" -o "$scratch/$test-asan" "$static" "${needed[@]}"
    limited "$scratch/$test-asan" "$scratch/secret"
done

if command -v valgrind >/dev/null; then
    say 'tests under valgrind'
    # Of optimized code it also reports comparisons with values that are not set, whose result nothing uses. The tests
    # with threads spin, and valgrind runs one thread at a time. A forked child forgets what it does not own.
    for test in operations arguments servers groups; do
        limited valgrind --quiet --error-exitcode=3 --undef-value-errors=no --leak-check=full \
            --show-leak-kinds=definite --errors-for-leak-kinds=definite \
            "$scratch/$test" "$scratch/secret"
    done
else
    say 'LEFT OUT: valgrind is not installed'
fi
