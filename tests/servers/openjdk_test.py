"""What the openjdk_*.py share: OpenJDK 17, the programs beside it compiled once, and runs natively and preloaded."""
import os
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
from server_test import LIB, Child, expect, finish, scratch, skip

HERE = os.path.dirname(os.path.abspath(__file__))
HEAP = '-Xmx512m'


def compile_java(*names):
    """The folder with the classes; skips without OpenJDK 17, fails where javac does."""
    version = subprocess.run(['javac', '-version'], capture_output=True, text=True, timeout=60, check=False)
    if ' 17.' not in version.stdout + version.stderr:
        skip(f'needs OpenJDK 17, there is {(version.stdout or version.stderr).strip()}')
    classes = os.path.join(scratch(), 'classes')
    built = subprocess.run(['javac', '-d', classes, *[os.path.join(HERE, name + '.java') for name in names]],
                           capture_output=True, text=True, timeout=90, check=False)
    if not expect(built.returncode == 0, 'javac', built.stdout + built.stderr):
        finish()
    return classes


def own_signals():
    # What a shell runs in the background ignores some, and the JVM would leave it so.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def java(classes, *arguments, preload=None, name=None, options=()):
    return Child(['java', HEAP, *options, '-cp', classes, *arguments], preload=preload, name=name, cwd=scratch(),
                 setup=own_signals)


def is_fibers(child):
    expect(child.mode() == 'fibers', f'{child.name}: mode: {child.mode() or "no start line"}')


def same(classes, *arguments, options=(), seconds=60, before=None):
    """Exit code, stdout and stderr as natively. before(child): called while it runs. The preloaded run."""
    label = '-'.join([*arguments, *[option.strip('-') for option in options]])
    native = java(classes, *arguments, name=label + '-native', options=options)
    if before:
        before(native)
    native_code = native.wait(seconds)
    child = java(classes, *arguments, preload=LIB, name=label, options=options)
    if before:
        before(child)
    code = child.wait(seconds)
    if native_code is not None and code is not None:
        expect(code == native_code, f'{label}: ends with {code}, natively {native_code}', child.out[-500:] + child.err[-1500:])
        expect(child.out == native.out, f'{label}: stdout differs', child.out[-500:] + '\nnatively\n' + native.out[-500:])
        expect(child.err == native.err, f'{label}: stderr differs', child.err[-500:] + '\nnatively\n' + native.err[-500:])
    is_fibers(child)
    return child
