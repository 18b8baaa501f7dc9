"""What the scripts in this folder share: running a test program preloaded, and findings.

The runner gives LIB, BUILD and LOGS in the environment. A script ends with finish(): exit code 0 if nothing was found.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

LIB = os.path.abspath(os.environ['LIB'])
PROGRAMS = os.path.join(os.path.abspath(os.environ['BUILD']), 'tests', 'prog')
LOGS = os.environ.get('LOGS') or tempfile.mkdtemp(prefix='vthr-logs-')

_findings = 0
_scratch = None


def expect(condition, text, shown=''):
    """A finding unless condition holds."""
    global _findings
    if not condition:
        _findings += 1
        print(f'FAIL: {text}')
        for line in str(shown).splitlines()[-12:]:
            print(f'    {line[:400]}')
        sys.stdout.flush()
    return bool(condition)


def finish():
    if _scratch:
        shutil.rmtree(_scratch, ignore_errors=True)
    if not _findings:
        print('OK')
    sys.exit(1 if _findings else 0)


def skip(reason):
    print(reason)
    sys.exit(77)


def scratch():
    """A folder of this script's own."""
    global _scratch
    if _scratch is None:
        _scratch = tempfile.mkdtemp(prefix='vthr-prog-')
    return _scratch


def program(name):
    return os.path.join(PROGRAMS, name)


def environment(preload=True, **settings):
    """The environment without any VTHR_ setting but the given ones. A setting of None is left out."""
    env = {k: v for k, v in os.environ.items() if not k.startswith('VTHR_') and k != 'LD_PRELOAD'}
    if preload:
        env['LD_PRELOAD'] = LIB
    env.update({k: str(v) for k, v in settings.items() if v is not None})
    return env


def logged(**settings):
    """Settings for a run whose start line goes to LOGS, as a proof for the runner."""
    return dict({'VTHR_LOG': os.path.join(LOGS, 'log.%p'), 'VTHR_LOG_LEVEL': 'info'}, **settings)


def run(command, preload=True, timeout=60, cwd=None, **settings):
    """Runs a command to its end: .returncode, .stdout and .stderr as text, .seconds."""
    begin = time.monotonic()
    try:
        result = subprocess.run(command, env=environment(preload, **settings), stdin=subprocess.DEVNULL, capture_output=True,
                                timeout=timeout, cwd=cwd, check=False)
    except subprocess.TimeoutExpired as hang:
        expect(False, f'{" ".join(command)} hangs', (hang.stdout or b'').decode(errors='replace'))
        finish()
    result.seconds = time.monotonic() - begin
    result.stdout = result.stdout.decode(errors='replace')
    result.stderr = result.stderr.decode(errors='replace')
    return result


def start(command, preload=True, cwd=None, **settings):
    """Starts a command whose standard input and output are pipes (text)."""
    return subprocess.Popen(command, env=environment(preload, **settings), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, cwd=cwd, text=True)


def ours(text):
    """The lines of libvthr in a text; continuation lines of a pin event are not among them."""
    return [line for line in text.splitlines() if line.startswith('vthr: ')]


def read_text(path):
    with open(path, encoding='utf-8', errors='replace') as file:
        return file.read()


def read_json(path):
    """The document, or None with a finding."""
    try:
        return json.loads(read_text(path))
    except (OSError, ValueError) as error:
        expect(False, f'{os.path.basename(path)} is no JSON document: {error}')
        return None


def wait_until(condition, seconds=15):
    """Whether condition() becomes true in time."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.02)


def files(pattern):
    return sorted(glob.glob(os.path.join(scratch(), pattern)))


def first_number(text):
    found = re.search(r'-?\d+(\.\d+)?', text)
    return float(found.group()) if found else None
