#!/bin/bash
# The demonstration: one unmodified server under 1,000 connections, preloaded and natively, side by
# side, and what the runtime says about it. It is a test too: it fails, with one line, when the
# preloaded run was not one, gave a wrong answer, used too many kernel threads, or did not report
# the one wait in it that cannot be parked.
#
#   LIB     the library (default $BUILD/libvthr.so)
#   BUILD   where examples/legacy_server and examples/legacy_client are (default build)
#   V=1     on failure, show the log and the server's stderr too
set -u
export LC_ALL=C

BUILD=${BUILD:-build}
LIB=$(realpath -m -- "${LIB:-$BUILD/libvthr.so}")
SERVER=$BUILD/examples/legacy_server
CLIENT=$BUILD/examples/legacy_client
CONNECTIONS=1000
ROUNDS=40
# Two runs at their limits and what is between them stay under 30 seconds.
CLIENT_LIMIT=9
SERVER_LIMIT=13
CPUS=$(nproc)
MAX_THREADS=$((CPUS + 10))

dir=$(mktemp -d) || exit 1
job=
server_pid=
run=

cleanup() {
    # Killing the server ends the `timeout` around it. It is only known to be ours while the job is.
    if [ -n "$job" ] && kill -0 "$job" 2>/dev/null; then
        [ -n "$server_pid" ] && kill -KILL "$server_pid" 2>/dev/null
        wait "$job" 2>/dev/null
    fi
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    if [ "${V:-0}" = 1 ]; then
        for file in "$dir/log" "$dir"/*.err; do
            [ -s "$file" ] && { echo "--- ${file##*/}"; head -n 60 "$file"; } >&2
        done
    fi
    echo "make demo: $*" >&2
    exit 1
}

# wait_for SECONDS COMMAND...: until it succeeds, or its time is over.
wait_for() {
    local tries=$(($1 * 20))
    shift
    while ! "$@" >/dev/null 2>&1; do
        [ $((tries--)) -gt 0 ] || return 1
        sleep 0.05
    done
}

last_words() { tail -n 1 "$dir/$run.err" | sed 's/^/: /'; }
value() { sed -n "s/^$2=//p" "$dir/$1.client"; }
stat_value() { tr ' ' '\n' <"$dir/$1.stats" | sed -n "s/^$2=//p"; }
port() { sed -n "s/^$2 //p" "$dir/$1.out"; }

server_is_up() { grep -q '^admin ' "$dir/$run.out" || ! kill -0 "$job" 2>/dev/null; }

# The shell in between writes down the pid that the server gets by exec: the one of `timeout` is
# another, and only the server may have the library preloaded. The subshell around it all keeps what
# bash has to say about a killed job out of ours.
start_server() {
    run=$1
    server_pid=
    shift
    : >"$dir/$run.out"
    # shellcheck disable=SC2016
    (
        timeout --foreground -k 1 "$SERVER_LIMIT" sh -c 'echo $$ >"$1"; shift; exec "$@"' sh \
            "$dir/$run.pid" env -u LD_PRELOAD "$@" "$SERVER" 0 \
            </dev/null >"$dir/$run.out" 2>"$dir/$run.err"
        exit $?
    ) 2>/dev/null &
    job=$!
    wait_for 3 test -s "$dir/$run.pid" ||
        fail "the $run server could not be started"
    server_pid=$(cat "$dir/$run.pid")
    wait_for 3 server_is_up
    if [ -z "$(port "$run" admin)" ]; then
        # Before the message: a runtime that declined is the better explanation.
        [ "$run" = preloaded ] && must_be_fibers
        fail "the $run server did not start$(last_words)"
    fi
}

drive() {
    timeout -k 1 $((CLIENT_LIMIT + 2)) "$CLIENT" "$(port "$run" listening)" \
        "$CONNECTIONS" "$ROUNDS" "$server_pid" "$CLIENT_LIMIT" \
        >"$dir/$run.client" 2>"$dir/$run.client.err"
    local status=$? wrong
    # A crash shows at the client first: its connections break before the job is gone.
    [ "$status" = 0 ] || sleep 0.3
    kill -0 "$job" 2>/dev/null || fail_early
    wrong=$(value "$run" wrong)
    [ -n "$wrong" ] || fail "$run run: the client gave no result (status $status)"
    [ "$wrong" = 0 ] ||
        fail "$run run: $wrong wrong answers: $(head -n 1 "$dir/$run.client.err")"
    [ "$status" = 0 ] || fail "$run run: $(head -n 1 "$dir/$run.client.err") (status $status)"
    [ "$(value "$run" peak_kernel_threads)" -gt 0 ] ||
        fail "$run run: the kernel threads of the server could not be read from /proc"
}

fail_early() {
    wait "$job"
    local status=$?
    job=
    fail "the $run server ended early (status $status)$(last_words)"
}

stop_server() {
    local bye=
    exec 3<>"/dev/tcp/127.0.0.1/$(port "$run" admin)" || fail "$run run: no admin connection"
    printf 'STATS\n' >&3
    IFS= read -r -t 2 -u 3 line || fail "$run run: no answer to STATS"
    echo "$line" >"$dir/$run.stats"
    printf 'QUIT\n' >&3
    IFS= read -r -t 2 -u 3 bye
    exec 3>&-
    [ "$bye" = BYE ] || fail "$run run: no answer to QUIT"
    wait "$job"
    local status=$?
    job=
    [ "$status" = 0 ] || fail "the $run server ended with status $status instead of 0"
    [ "$(stat_value "$run" peak_connections)" = "$CONNECTIONS" ] ||
        fail "$run run: the server saw $(stat_value "$run" peak_connections) open connections"
}

must_be_fibers() {
    wait_for 2 grep -q '^vthr: start mode=' "$dir/log"
    grep -q '^vthr: start mode=fibers' "$dir/log" 2>/dev/null && return
    local line
    line=$(grep -m 1 '^vthr: start mode=' "$dir/log" 2>/dev/null)
    [ -n "$line" ] && fail "the runtime declined: $line"
    fail "the runtime did not start: no line \"vthr: start\" in its log (library: $LIB)"
}

# The pin events of the log, the first of all and the first in vendor_poll with their stacks.
pins() {
    awk '
        function flush() {
            if (head == "") return
            vendor = index(stack, "vendor_poll")
            print head
            if (shown++ == 0 || (vendor && !seen)) printf "%s", stack
            if (vendor) seen = 1
            head = stack = ""
        }
        /^(vthr:)?[ >]*#[0-9]/ { if (head != "") stack = stack $0 "\n"; next }
        { flush() }
        /^vthr: pin / { head = $0 }
        END { flush() }' "$dir/log"
}
vendor_is_reported() { pins | grep -q vendor_poll; }

row() { printf '%-44s %12s %12s\n' "$@"; }

# ---- preloaded ---------------------------------------------------------------------------------

for program in "$SERVER" "$CLIENT"; do
    [ -x "$program" ] || fail "$program is missing: build first"
done
[ -r "$LIB" ] || fail "no library $LIB"

start_server preloaded LD_PRELOAD="$LIB" VTHR_LOG="$dir/log" VTHR_LOG_FORMAT=text \
    VTHR_LOG_LEVEL=info VTHR_PIN=report VTHR_REPORT="$dir/report"
must_be_fibers
drive
threads=$(value preloaded peak_kernel_threads)
[ "$threads" -le "$MAX_THREADS" ] ||
    fail "$threads kernel threads, allowed are $MAX_THREADS (CPUs + 10)"
# The event is written by a thread of the runtime, some time after the wait has ended.
wait_for 2 vendor_is_reported || fail "the pin in vendor_poll was not reported"
stop_server
[ -s "$dir/report" ] || fail "no report was written at exit"

# ---- natively ----------------------------------------------------------------------------------

start_server native
drive
stop_server

# Ports apart, which the system chooses, nothing that the program prints may differ.
for stream in out err; do
    for r in preloaded native; do
        sed -E 's/^(listening|admin) [0-9]+$/\1 PORT/' "$dir/$r.$stream" >"$dir/$r.$stream.same"
    done
    cmp -s "$dir/preloaded.$stream.same" "$dir/native.$stream.same" ||
        fail "the server's std$stream is not that of the native run"
done

# ---- what came of it ---------------------------------------------------------------------------

echo "An unmodified server with a thread for each connection, $CONNECTIONS connections at once, $CPUS CPUs"
echo
row "" "LD_PRELOAD" "natively"
row "requests served" "$(stat_value preloaded requests)" "$(stat_value native requests)"
row "wrong answers" "$(value preloaded wrong)" "$(value native wrong)"
row "peak threads of the program (connections)" "$(stat_value preloaded peak_connections)" \
    "$(stat_value native peak_connections)"
row "peak kernel threads" "$threads" "$(value native peak_kernel_threads)"
row "seconds" "$(value preloaded seconds)" "$(value native seconds)"
row "p50 of an answer, ms" "$(value preloaded p50_ms)" "$(value native p50_ms)"
row "p99 of an answer, ms" "$(value preloaded p99_ms)" "$(value native p99_ms)"
echo
grep -m 1 '^vthr: start mode=fibers' "$dir/log"
echo
echo "Pins, as logged while it ran:"
pins | head -n 60
echo
echo "The report written at exit:"
head -n 80 "$dir/report"
