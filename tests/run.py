#!/usr/bin/env python3
"""The test runner. `make check` builds the tests and calls it; see --help.

Kinds of tests:
  unit model   programs of ours: run as they are, exit 0 passes
  tsan asan    units built with ThreadSanitizer and with AddressSanitizer, and programs of tests/seeded that one of them must
               complain of
  cases        tests/cases/*.c: exit 0 and last line "OK", natively and under the preload, in three modes (cap: with
               VTHR_MAX_CONCURRENCY=4096); with --long many times
  prog regress stress
               tests/KIND/NAME.{c,cc,cpp}: run natively first (exit 0), then under the preload in each mode;
               exit code and stdout must be the same
  servers and every executable tests/KIND/NAME.{py,sh}
               scripts that preload by themselves: exit 0 passes, 77 skips with the last line of stdout as the reason
  tools        the rules for the sources: layers, symbols, and the runner's own test

A source or script may say how it is to be run, in a comment; more lines make more variants (shell quoting, ${BUILD}, ${LIB},
${SRC}, ${LOGS} are replaced):
  // run: args="a b" env=K=V env=K=V modes=default,carriers1 timeout=30 exit=0 threads=no needs=java,/usr/bin/x,root
  // run: expect-mode=native why="part of the reason" log="part of a line" stdout=ignore stderr=ignore alone=yes long=yes proof=own name=LABEL
  // run: exit=66 says="a regular expression that stderr must match"     (programs of ours only)

Every preloaded test proves that it was one: VTHR_LOG names a file in ${LOGS}, and some process must have logged
"mode=fibers". threads=no: no process may have (the runtime starts at the first pthread_create). expect-mode=native: one must
have logged mode=native with its reason. log: one must have logged this. proof=own: the script checks by itself. For the last three, and first of all,
the library itself is looked at: it must exist and export what interpose/symbols.def says.
alone=yes: nothing else runs meanwhile (figures of CPU time and the like). long=yes: only with --long.
"""
import argparse
import concurrent.futures
import os
import re
import select
import shlex
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import threading
import time

MODES = {
    'default': {},
    'carriers1': {'VTHR_CARRIERS': '1'},
    'cap': {'VTHR_MAX_CONCURRENCY': '4096'},
    # The other engine, and io_uring without what came to it later: ENGINE_MODES.
    'epoll': {'VTHR_IO': 'epoll'},
    'epoll1': {'VTHR_IO': 'epoll', 'VTHR_CARRIERS': '1'},
    'noring': {'VTHR_RING_FEATURES': 'none'},
}
SANITIZERS = ('tsan', 'asan')
NATIVE_KINDS = ('unit', 'model') + SANITIZERS
PROGRAM_KINDS = ('cases', 'prog', 'regress', 'stress')
SCRIPT_KINDS = ('prog', 'regress', 'stress', 'servers')
KINDS = NATIVE_KINDS + PROGRAM_KINDS + ('servers', 'tools')
SOURCES = ('.c', '.cc', '.cpp')
DEFAULT_MODES = {'cases': ['default', 'carriers1', 'cap'], 'stress': ['default'], 'servers': ['default']}
# Every program also runs in these modes with --all-modes (and --long); without it the cases and those named here do.
ENGINE_MODES = ['epoll', 'noring']
ENGINE_MODES_OF = {
    'cases': 'epoll',
    'accept_connect big_writes cancel_points datagrams epolls eventfd_timerfd fork_threads net_timeouts nonblock pipe_io polls selects '
    'shutdown_close signal_interrupts socket_timeouts tcp_echo unix_sockets own_numbers reused_numbers socket_vectors '
    'stray_bytes closed_under_wait fd_reuse': 'epoll',
    'tcp_echo polls': 'epoll1',
    'recv_flags socket_timeouts': 'noring',
}
DEFAULT_TIMEOUT = {'unit': 120, 'tsan': 300, 'asan': 300, 'model': 300, 'stress': 120, 'servers': 120, 'tools': 300}
LONG_CASES, LONG_CASES_BELOW = 50, 0.5  # with --long: so often a case that takes less than so many seconds, others 20 times
KEYS = {'args', 'env', 'modes', 'timeout', 'exit', 'threads', 'needs', 'expect-mode', 'why', 'stdout', 'stderr', 'alone',
        'proof', 'name', 'log', 'says', 'long'}


class Failed(Exception):
    """A test failed; the text says why."""


class Skipped(Exception):
    """A test cannot run here; the text says why."""


# --- the tests ---------------------------------------------------------------------------------------


class Test:
    """One row: a command, how it is run and in which mode. `native` is shared by the modes of a program."""

    def __init__(self, kind, name, command, spec, mode=None, native=None, script=False):
        self.kind, self.command, self.spec, self.mode = kind, command, spec, mode
        self.native, self.script = native, script
        label = spec.get('name')
        self.name = f'{kind}/{name}' + (f'#{label}' if label else '') + (f' [{mode}]' if mode else '')
        self.timeout = float(spec.get('timeout', DEFAULT_TIMEOUT.get(kind, 30)))


class Native:
    """The native run of a program, made once, by the first of its modes that asks for it."""

    def __init__(self):
        self.lock, self.result = threading.Lock(), None


def read_specs(path):
    """The `run:` lines of a source file or script, as dictionaries; one empty one if there are none."""
    specs = []
    with open(path, encoding='utf-8', errors='replace') as source:
        for number, line in enumerate(source, 1):
            found = re.match(r'\s*(?://|#|/?\*+)\s*run:\s*(.*?)(?:\*/)?\s*$', line)
            if not found:
                continue
            spec = {'env': {}}
            for token in shlex.split(found.group(1)):
                key, equals, value = token.partition('=')
                if key not in KEYS or not equals:
                    sys.exit(f'{path}:{number}: unknown in a run: line: {token}')
                if key == 'env':
                    variable, _, setting = value.partition('=')
                    spec['env'][variable] = setting
                else:
                    spec[key] = value
            for mode in filter(None, spec.get('modes', '').split(',')):
                if mode not in MODES:
                    sys.exit(f'{path}:{number}: unknown mode {mode}')
            specs.append(spec)
    for index, spec in enumerate(specs):
        if len(specs) > 1:
            spec.setdefault('name', str(index + 1))
    return specs or [{'env': {}}]


def discover(opt):
    tests = []
    where = os.path.join(opt.root, 'tests')

    def modes_of(kind, name, spec, script):
        modes = spec['modes'].split(',') if 'modes' in spec else \
            ['default'] if script else DEFAULT_MODES.get(kind, ['default', 'carriers1'])
        if {'expect-mode', 'log'} & set(spec) or spec.get('threads') == 'no' or 'VTHR_IO' in spec['env']:
            return modes
        if opt.all_modes or opt.long:
            return modes + [mode for mode in ENGINE_MODES[:1 if script else 2] if mode not in modes]
        if script:
            return modes
        return modes + [mode for names, mode in ENGINE_MODES_OF.items() if {kind, name} & set(names.split())]

    for kind in dict.fromkeys(NATIVE_KINDS + PROGRAM_KINDS + SCRIPT_KINDS):
        folders = [os.path.join(where, name) for name in (('unit', 'seeded') if kind in SANITIZERS else (kind,))]
        for path in [os.path.join(f, file) for f in folders if os.path.isdir(f) for file in sorted(os.listdir(f))]:
            file = os.path.basename(path)
            name, extension = os.path.splitext(file)
            if extension in SOURCES and not name.endswith('.so'):
                if kind in SANITIZERS:
                    binary = os.path.join(opt.build, kind, name)
                    if name not in getattr(opt, kind).split():
                        continue
                else:
                    binary = os.path.join(opt.build, 'tests', kind, name)
                for spec in read_specs(path):
                    if kind in NATIVE_KINDS:
                        tests.append(Test(kind, name, [binary], spec))
                    elif kind in PROGRAM_KINDS:
                        native = Native()
                        tests += [Test(kind, name, [binary], spec, mode, native) for mode in modes_of(kind, name, spec, False)]
            elif extension in ('.py', '.sh') and kind in SCRIPT_KINDS and os.access(path, os.X_OK):
                for spec in read_specs(path):
                    tests += [Test(kind, name, [path], spec, mode, script=True) for mode in modes_of(kind, name, spec, True)]
    tools = os.path.join(where, 'tools')
    if opt.tools:
        for name, command in (
                ('layers', [os.path.join(tools, 'layers.py')]),
                ('symbols', [os.path.join(tools, 'symbols.py'), os.path.join(opt.build, 'libvthr.so'),
                             os.path.join(opt.root, 'interpose', 'symbols.def')]),
                ('option_table', [os.path.join(tools, 'option_table.py'), os.path.join(opt.build, 'vthr'), '--check']),
                ('runner_selftest', [os.path.join(where, 'runner_selftest.py')])):
            if os.path.exists(command[0]):
                tests.append(Test('tools', name, command, {'env': {}}))
    only = set(opt.only.split(',')) if opt.only else None
    tests = [t for t in tests if opt.long or t.spec.get('long') != 'yes']
    return [t for t in tests if (only is None or t.kind in only) and re.search(opt.filter, t.name)]


# --- one process -------------------------------------------------------------------------------------


def first_line(path):
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return file.readline().strip()
    except OSError as error:
        return f'({error.strerror})'


def group_members(leader):
    """Processes of the test's process group and session."""
    members = []
    for entry in os.listdir('/proc'):
        if entry.isdigit():
            stat = first_line(f'/proc/{entry}/stat').rpartition(')')[2].split()
            if len(stat) > 3 and str(leader) in (stat[2], stat[3]) and stat[0] != 'Z':
                members.append(int(entry))
    return members


def describe_hang(leader):
    """Where each kernel thread of the test is, while it still hangs."""
    lines = []
    for pid in group_members(leader):
        tasks = f'/proc/{pid}/task'
        try:
            tids = sorted(os.listdir(tasks), key=int)
        except OSError:
            continue
        lines.append(f'process {pid}, {len(tids)} kernel threads:')
        for tid in tids[:40]:
            task = f'{tasks}/{tid}'
            lines.append(f'  {tid} {first_line(task + "/comm"):15} wchan={first_line(task + "/wchan")}'
                         f' syscall={first_line(task + "/syscall")}')
        if len(tids) > 40:
            lines.append(f'  ... and {len(tids) - 40} more')
    return '\n'.join(lines)


class Run:
    """The outcome of one process: exit code (negative: signal), stdout, stderr, text about a hang."""

    def __init__(self, command, env, timeout, cwd, scratch):
        out, err = os.path.join(scratch, 'stdout'), os.path.join(scratch, 'stderr')
        start = time.monotonic()
        with open(out, 'wb') as stdout, open(err, 'wb') as stderr:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=env, cwd=cwd,
                                       start_new_session=True)
        descriptor = os.pidfd_open(process.pid)
        try:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            ended = poller.poll(timeout * 1000)
            self.hang = '' if ended else describe_hang(process.pid)
        finally:
            os.close(descriptor)
            # Not reaped yet, so the group's number is still its own.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        self.timed_out, self.code, self.seconds = not ended, process.returncode, time.monotonic() - start
        with open(out, 'rb') as file:
            self.stdout = file.read()
        with open(err, 'rb') as file:
            self.stderr = file.read()


def tail(data, lines=12):
    text = data.decode('utf-8', 'replace').rstrip().splitlines()
    return '\n'.join(line[:300] for line in text[-lines:])


def outcome(code):
    return f'signal {-code} ({signal.Signals(-code).name})' if code < 0 else f'exit code {code}'


def fail_run(run, why, timeout=0):
    if run.timed_out:
        why = f'hung: no end after {timeout:g} s\n{run.hang}'
    for label, data in (('stdout', run.stdout), ('stderr', run.stderr)):
        if data.strip():
            why += f'\n{label} ends:\n{tail(data)}'
    raise Failed(why)


# --- running a test ----------------------------------------------------------------------------------


class Runner:

    def __init__(self, opt):
        self.opt = opt
        self.scale = float(os.environ.get('TIMEOUT_SCALE', '1'))
        self.library_problem = '' if opt.trust_library else self.look_at_library()
        self.base_env = {k: v for k, v in os.environ.items()
                         if not k.startswith('VTHR_') and k not in ('LD_PRELOAD', 'MAKEFLAGS', 'MFLAGS', 'MAKELEVEL')}
        self.base_env.update(LIB=opt.lib, BUILD=opt.build, STRESS=str(opt.stress))

    def look_at_library(self):
        lib = self.opt.lib
        if not os.path.isfile(lib):
            return f'there is no library {lib}'
        rows = os.path.join(self.opt.root, 'interpose', 'symbols.def')
        try:
            with open(rows, encoding='utf-8') as file:
                names = set(re.findall(r'^\s*(?:HOOK|EXPORT|HOOK_VER)\(\s*(\w+)', file.read(), re.M))
        except OSError:
            return ''
        nm = subprocess.run(['nm', '-D', '--defined-only', lib], capture_output=True, text=True, check=False)
        exported = {line.split()[-1].partition('@')[0] for line in nm.stdout.splitlines() if line.strip()}
        return '' if names <= exported else f'{lib} is not libvthr: it does not export {sorted(names - exported)[0]}'

    def check_needs(self, spec):
        for need in filter(None, spec.get('needs', '').split(',')):
            there = os.geteuid() == 0 if need == 'root' else os.path.exists(need) if '/' in need else shutil.which(need)
            if not there:
                raise Skipped(f'needs {need}')

    def expand(self, text, logs, source):
        return string.Template(text).safe_substitute(BUILD=self.opt.build, LIB=self.opt.lib, SRC=source, LOGS=logs)

    def command_and_env(self, test, logs):
        source = os.path.join(self.opt.root, 'tests', test.kind)
        command = list(test.command)
        command += [self.expand(word, logs, source) for word in shlex.split(test.spec.get('args', ''))]
        env = dict(self.base_env)
        env.update({k: self.expand(v, logs, source) for k, v in test.spec['env'].items()})
        return command, env

    def execute(self, test, command, env, scratch):
        return Run(command, env, test.timeout * self.scale, self.opt.root, scratch)

    def preload_env(self, test, env, logs):
        env = dict(env)
        own = test.spec['env']
        for key, value in dict(MODES[test.mode], VTHR_LOG=os.path.join(logs, 'log.%p'), VTHR_LOG_LEVEL='info').items():
            if key not in own:
                env[key] = value
        if not test.script:
            env['LD_PRELOAD'] = self.opt.lib + (':' + own['LD_PRELOAD'] if 'LD_PRELOAD' in own else '')
        env['LOGS'] = logs
        return env

    def native_run(self, test):
        with test.native.lock:
            if test.native.result is None:
                with tempfile.TemporaryDirectory(prefix='vthr-test-') as scratch:
                    command, env = self.command_and_env(test, scratch)
                    test.native.result = self.execute(test, command, env, scratch)
        native = test.native.result
        expected = int(test.spec.get('exit', 0))
        if native.timed_out or native.code != expected:
            fail_run(native, f'natively: {outcome(native.code)}, expected {outcome(expected)}', test.timeout)
        if test.kind == 'cases' and native.stdout.splitlines()[-1:] != [b'OK']:
            fail_run(native, 'natively: the last line is not OK')
        return native

    def prove(self, test, logs):
        """Fails unless the logs show that the test ran as it should have."""
        text = ''
        for file in sorted(os.listdir(logs)):
            with open(os.path.join(logs, file), encoding='utf-8', errors='replace') as log:
                text += log.read()
        fibers = re.search(r'\bmode"?[=:] ?"?fibers', text)
        native = [line for line in text.splitlines() if re.search(r'\bmode"?[=:] ?"?native', line)]
        if test.spec.get('log', '') not in text:
            raise Failed(f'no process logged "{test.spec["log"]}"\nlog ends:\n{tail(text.encode())}')
        shown = f'\nlog ends:\n{tail(text.encode())}' if text.strip() else '\n(the log is empty)'
        if test.spec.get('proof') == 'own':
            return
        if test.spec.get('expect-mode') == 'native':
            reason = [line for line in native if re.search(r'\bwhy"?[=:] ?"[^"]', line) and test.spec.get('why', '') in line]
            if fibers or not reason:
                raise Failed(f'expected mode=native, why="{test.spec.get("why", "...")}"' + shown)
        elif test.spec.get('threads') == 'no':
            if fibers:
                raise Failed('a program without threads started the runtime' + shown)
        elif not fibers:
            raise Failed('the runtime did not run: no process logged mode=fibers' + shown)

    def run_once(self, test):
        """The seconds that the run took, or an exception."""
        if test.kind in NATIVE_KINDS or test.kind == 'tools':
            with tempfile.TemporaryDirectory(prefix='vthr-test-') as scratch:
                command, env = self.command_and_env(test, scratch)
                if test.kind == 'tsan':
                    command = self.without_aslr() + command
                run = self.execute(test, command, env, scratch)
            expected = int(test.spec.get('exit', 0))
            if run.timed_out or run.code != expected:
                fail_run(run, outcome(run.code) + (f', expected {outcome(expected)}' if expected else ''), test.timeout)
            if not re.search(test.spec.get('says', ''), run.stderr.decode('utf-8', 'replace')):
                fail_run(run, f'stderr does not say "{test.spec["says"]}"')
            return run.seconds
        if self.library_problem:
            raise Failed(self.library_problem)
        native = None if test.script else self.native_run(test)
        with tempfile.TemporaryDirectory(prefix='vthr-test-') as scratch:
            logs = os.path.join(scratch, 'logs')
            os.mkdir(logs)
            os.chmod(scratch, 0o755)
            os.chmod(logs, 0o1777)  # tests change their user
            command, env = self.command_and_env(test, logs)
            run = self.execute(test, command, self.preload_env(test, env, logs), scratch)
            self.judge(test, run, native)
            self.prove(test, logs)
        return run.seconds

    def judge(self, test, run, native):
        if test.script:
            if run.code == 77 and not run.timed_out:
                raise Skipped(tail(run.stdout, 1) or 'no reason given')
            if run.timed_out or run.code != 0:
                fail_run(run, outcome(run.code), test.timeout)
            return
        if run.timed_out or run.code != native.code:
            fail_run(run, f'{outcome(run.code)}, natively {outcome(native.code)}', test.timeout)
        if test.kind == 'cases':
            if run.stdout.splitlines()[-1:] != [b'OK']:
                fail_run(run, 'the last line is not OK')
        elif test.spec.get('stdout') != 'ignore' and run.stdout != native.stdout:
            fail_run(run, f'stdout differs from the native run, which ended:\n{tail(native.stdout)}')
        if test.spec.get('stderr') != 'ignore' and re.search(rb'^vthr: ', run.stderr, re.M):
            fail_run(run, 'a line of ours on stderr although VTHR_LOG names a file')

    def without_aslr(self):
        # GCC 12's TSan does not know the mappings that a large vm.mmap_rnd_bits makes.
        command = ['setarch', '-R']
        return command if subprocess.run(command + ['true'], capture_output=True, check=False).returncode == 0 else []

    def run(self, test):
        """(result, text, seconds)"""
        start = time.monotonic()
        repeat = self.opt.repeat
        result, text = 'passed', ''
        try:
            self.check_needs(test.spec)
            if not os.path.exists(test.command[0]):
                raise Failed(f'{test.command[0]} was not built')
            number = 0
            while number < repeat:
                try:
                    took = self.run_once(test)
                except Failed as failure:
                    raise Failed((f'run {number + 1} of {repeat}: ' if repeat > 1 else '') + str(failure)) from None
                if number == 0 and self.opt.long and test.kind == 'cases':
                    repeat = max(repeat, LONG_CASES if took < LONG_CASES_BELOW else 20)
                number += 1
        except Failed as failure:
            result, text = 'failed', str(failure)
        except Skipped as skip:
            result, text = 'skipped', str(skip)
        except OSError as error:
            result, text = 'failed', f'could not be run: {error}'
        return result, text, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument('--lib', help='library to preload (default: BUILD/libvthr.so)')
    parser.add_argument('--build', default='build', help='build directory')
    parser.add_argument('--root', default=here, help='tree whose tests/ is run')
    parser.add_argument('--filter', default='', metavar='REGEX', help='only tests whose "kind/name [mode]" matches')
    parser.add_argument('--only', metavar='KIND,...', help='only these kinds: ' + ' '.join(KINDS))
    parser.add_argument('--tsan', default='', metavar='"NAME ..."', help='units that were built with ThreadSanitizer')
    parser.add_argument('--asan', default='', metavar='"NAME ..."', help='units that were built with AddressSanitizer')
    parser.add_argument('--tools', action='store_true', help='also the rules for the sources and the test of the runner')
    parser.add_argument('--repeat', type=int, default=1, metavar='N', help='each test N times')
    parser.add_argument('--long', action='store_true', help='cases 20 or 50 times, stress programs with STRESS=10')
    parser.add_argument('--all-modes', action='store_true', help='every program on each engine (--long does too)')
    parser.add_argument('--jobs', type=int, default=2, metavar='N', help='tests at once')
    parser.add_argument('--list', action='store_true', help='only list the tests')
    parser.add_argument('--trust-library', action='store_true', help="do not look at the library first (the runner's own test)")
    parser.add_argument('-v', '--verbose', action='store_true', help='a line for each test')
    opt = parser.parse_args()
    opt.build = os.path.abspath(opt.build)
    opt.lib = os.path.abspath(opt.lib or os.path.join(opt.build, 'libvthr.so'))
    opt.root = os.path.abspath(opt.root)
    opt.stress = 10 if opt.long else 1

    tests = discover(opt)
    if opt.list:
        print('\n'.join(test.name for test in tests))
        return 0
    runner = Runner(opt)
    if opt.long:
        for test in tests:
            if test.kind == 'stress':
                test.timeout *= 10
    counts = {'passed': 0, 'failed': 0, 'skipped': 0}
    printing = threading.Lock()

    def one(test):
        result, text, seconds = runner.run(test)
        with printing:
            counts[result] += 1
            if result != 'passed' or opt.verbose:
                indented = ''.join('\n    ' + line for line in text.splitlines())
                print(f'{result:7} {test.name} ({seconds:.1f} s){indented}', flush=True)

    alone = [test for test in tests if test.spec.get('alone') == 'yes']
    with concurrent.futures.ThreadPoolExecutor(max(1, opt.jobs)) as pool:
        list(pool.map(one, [test for test in tests if test not in alone]))
    for test in alone:
        one(test)
    skipped = f', {counts["skipped"]} skipped' if counts['skipped'] else ''
    print(f'{counts["passed"]} passed, {counts["failed"]} failed{skipped}', flush=True)
    return 0 if counts['passed'] and not counts['failed'] else 1


if __name__ == '__main__':
    sys.exit(main())
