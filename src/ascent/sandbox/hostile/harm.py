"""Using up the machine, and not ending."""

from __future__ import annotations

from ascent.sandbox.hostile import Attack

_SOURCES = {
    "loop": "def solve(n):\n    while True:\n        pass",
    "loop at import": "while True:\n    pass",
    "loop that catches everything": (
        "import signal\nfor s in range(1, 65):\n    try:\n        signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError):\n        pass\n"
        "def solve(n):\n    while True:\n        try:\n            while True:\n                pass\n        except BaseException:\n            pass"
    ),
    "sleep": "import time\ndef solve(n): time.sleep(1000)",
    "waits for input": "def solve(n):\n    import select\n    select.select([], [], [])",
    "stops itself": "import os, signal\ndef solve(n):\n    os.kill(os.getpid(), signal.SIGSTOP)",
    "deadlock": "import threading\nlock = threading.Lock()\ndef solve(n):\n    lock.acquire()\n    lock.acquire()",
    "loop in C": "def solve(n): return 7 ** (7 ** 10)",
    "backtracking pattern": "import re\ndef solve(n): return re.match('(a+)+$', 'a' * 60 + 'b')",
    "memory": "def solve(n):\n    kept = []\n    for _ in range(40):\n        kept.append(b'x' * (1 << 25))\n    return len(kept)",
    "memory by mapping": (
        "import mmap\nkept = []\ndef solve(n):\n    for _ in range(40):\n        kept.append(mmap.mmap(-1, 1 << 25))\n        kept[-1].write(b'x' * (1 << 25))\n"
        "    return n"
    ),
    "memory that isn't touched": "def solve(n):\n    return len(bytearray(1 << 36))",
    "processes": (
        "import os, time\nfor _ in range(64):\n    try:\n        if os.fork() == 0:\n            time.sleep(20)\n            os._exit(0)\n    except OSError:\n        break\n"
        "def solve(n): return n"
    ),
    "threads": (
        "import threading, time\nthreading.stack_size(65536)\nfor _ in range(300):\n    try:\n"
        "        threading.Thread(target=time.sleep, args=(3,), daemon=True).start()\n    except RuntimeError:\n        break\n"
        "def solve(n):\n    time.sleep(0.3)\n    return n"
    ),
    "threads that spin": (
        "import threading\ndef spin():\n    while True:\n        pass\nfor _ in range(8):\n    threading.Thread(target=spin).start()\ndef solve(n): return n"
    ),
    "output": "def solve(n):\n    for _ in range(3000):\n        print('x' * 10000)\n    return n",
    "output on stderr": "import sys\ndef solve(n):\n    for _ in range(3000):\n        sys.stderr.write('x' * 10000)\n    return n",
    "one large file": "def solve(n):\n    with open('f', 'wb') as f:\n        for _ in range(100):\n            f.write(b'x' * (1 << 20))\n    return n",
    "many files": "def solve(n):\n    for i in range(20000):\n        open(f'f{i}', 'w').close()\n    return n",
    "much in many files": (
        "import os\ndef solve(n):\n    for i in range(20):\n        with open(f'f{i}', 'wb') as f:\n            for _ in range(15):\n                f.write(b'x' * (1 << 20))\n    return n"
    ),
    "deep directories": (
        "import os\ndef solve(n):\n    for i in range(1500):\n        os.mkdir('d')\n        os.chdir('d')\n    open('f', 'w').close()\n    return n"
    ),
    "names that are hard to remove": (
        "import os\nfor name in (b'\\xff\\xfe', b'-rf', b'a\\nb', b' ', b'\\x1b[2J', b'x' * 255):\n    os.mkdir(name)\n    open(name + b'/' + name, 'w').close()\n"
        "os.mkdir('closed')\nopen('closed/f', 'w').close()\ntry:\n    os.chmod('closed', 0)\nexcept OSError:\n    pass\ndef solve(n): return n"
    ),
    "descriptors": (
        "import os\ndef solve(n):\n    kept = []\n    try:\n        while len(kept) < 5000:\n            kept.append(os.dup(0))\n    except OSError:\n        pass\n    return n"
    ),
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef solve(n): return solve(n)",
    "recursion in C": (
        "import sys\nsys.setrecursionlimit(10**9)\nclass C:\n    def __repr__(self): return repr(self)\ndef solve(n): return repr(C())"
    ),
    "parser": "x = " + "(" * 5000 + ")" * 5000 + "\ndef solve(n): return n",
    "constant folding": "x = ((((1 << 100000) ** 100) ** 100) ** 10)\ndef solve(n): return n",
    "compiler": "def solve(n):\n    return eval('+'.join(['(' * 50 + '1' + ')' * 50] * 100000))",
    "null bytes": "def solve(n): return n\x00\n",
    "coding cookie": "# -*- coding: utf-7 -*-\ndef solve(n): return n\n+AAo-import os+AAo-os._exit(0)+AAo-",
    "unknown coding": "# -*- coding: nonsense -*-\ndef solve(n): return n",
    "surrogates in the source": "x = '\ud800'\ndef solve(n): return n",
    "sleeping destructor": (
        "import time\nclass Slow:\n    def __del__(self):\n        time.sleep(100)\nkept = Slow()\ndef solve(n):\n    global kept\n    del kept\n    return n"
    ),
    "profiling timer": "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\nsignal.signal(signal.SIGALRM, lambda *a: None)\ndef solve(n):\n    while True:\n        pass",
}
ATTACKS = tuple(Attack(name, "doing harm", source) for name, source in _SOURCES.items())
