"""Looking for expected values, tests, secrets, and traces of other programs."""

from __future__ import annotations

from ascent.sandbox.hostile import Attack

_SHOW = """
found = []
def show(text):
    found.append(str(text))
    print(str(text)[:5000])
"""
_SOURCES = {
    "reads a file": _SHOW + "try:\n    show(open('$SECRET').read())\nexcept OSError:\n    pass\ndef solve(n): return found",
    "reads through os.open": _SHOW
    + "import os\ntry:\n    show(os.read(os.open('$SECRET', os.O_RDONLY), 999))\nexcept OSError:\n    pass\ndef solve(n): return found",
    "maps a file": _SHOW
    + "import mmap, os\ntry:\n    fd = os.open('$SECRET', os.O_RDONLY)\n    show(mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:])\n"
    + "except OSError:\n    pass\ndef solve(n): return found",
    "imports a file": _SHOW
    + "import importlib.machinery as m\ntry:\n    m.SourceFileLoader('x', '$SECRET').load_module()\n"
    + "except SyntaxError as error:\n    show(error.text)\nexcept Exception:\n    pass\ndef solve(n): return found",
    "linecache": _SHOW + "import linecache\nshow(linecache.getlines('$SECRET'))\ndef solve(n): return found",
    "links a secret": _SHOW
    + "import os\nfor link in (os.symlink, os.link):\n    try:\n        link('$SECRET', 'here')\n        show(open('here').read())\n"
    + "    except OSError:\n        pass\ndef solve(n): return found",
    "walks the disk": _SHOW
    + "import os\nfor top in ('/root', '/home', '/tmp', '/etc', '/var', '/work', '/proc', '..', '/'):\n"
    + "    for folder, folders, files in os.walk(top):\n        for name in files[:50]:\n            try:\n"
    + "                text = open(os.path.join(folder, name), 'rb').read(100000)\n"
    + "                if b'$TOKEN' in text:\n                    show(text)\n            except OSError:\n                pass\n"
    + "        if len(found) > 5 or folder.count('/') > 6:\n            break\ndef solve(n): return found",
    "environment": _SHOW + "import os\nshow(dict(os.environ))\ndef solve(n): return found",
    "environment and memory of others": _SHOW
    + "import os\nfor pid in ['self', os.getppid(), $VICTIM, *range(1, 300)]:\n    for name in ('environ', 'cmdline', 'maps', 'mem'):\n"
    + "        try:\n            with open(f'/proc/{pid}/{name}', 'rb') as f:\n                text = f.read(1 << 16)\n"
    + "            if b'$TOKEN' in text:\n                show(text)\n        except OSError:\n            pass\ndef solve(n): return found",
    "other slots": _SHOW
    + "import os\nfor place in ('..', '/tmp', '/dev/shm', '/var/tmp'):\n    try:\n        show(os.listdir(place))\n        print('$TOKEN')\n"
    + "    except OSError:\n        pass\ndef solve(n): return found",
    "password file": _SHOW
    + "for path in ('/etc/passwd', '/etc/shadow', '/etc/hosts', '/root/.ssh/id_rsa'):\n    try:\n        show(open(path).read())\n"
    + "        print('$TOKEN')\n    except OSError:\n        pass\ndef solve(n): return found",
    "installed packages": _SHOW
    + "import sys, os\nfor path in list(sys.path):\n    for name in ('site-packages', 'dist-packages'):\n        try:\n"
    + "            show(os.listdir(os.path.join(path, name)))\n            print('$TOKEN')\n        except OSError:\n            pass\n"
    + "def solve(n): return found",
    "the sandbox's own source": _SHOW
    + "import sys, ascent.sandbox.inside.compare as c\nfor name, module in list(sys.modules.items()):\n"
    + "    if name.startswith('ascent'):\n        try:\n            show(open(module.__file__).read())\n            print('$TOKEN')\n"
    + "        except Exception:\n            pass\ndef solve(n): return found",
    "read_search by handle": _SHOW
    + "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nhandle = ctypes.create_string_buffer(256)\n"
    + "handle[0:4] = (128).to_bytes(4, 'little')\nmount = ctypes.c_int()\n"
    + "if libc.name_to_handle_at(-100, b'$SECRET', handle, ctypes.byref(mount), 0) == 0:\n"
    + "    fd = libc.open_by_handle_at(0, handle, 0)\n    import os\n    if fd >= 0:\n        show(os.read(fd, 999))\n"
    + "def solve(n): return found",
    "inherited descriptors": _SHOW
    + "import os\nfor fd in range(5, 1024):\n    try:\n        os.fstat(fd)\n        print('$TOKEN')\n        show(os.read(fd, 1000))\n"
    + "    except OSError:\n        pass\ndef solve(n): return found",
}
_SCAN = """
import ctypes, gc, os
codes = [108, 101, 102, 116, 98, 101, 104, 105, 110, 100, 45, 98, 121, 45, 97, 110, 111, 116, 104, 101]
start = bytes(codes)  # what the other left, less its last letter, so that this copy isn't found
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
pages = {id(o) >> 12 for o in gc.get_objects()} | {id(o) >> 12 for o in (1000003, 'text', b'bytes', object())}
pages |= {page + offset for page in pages for offset in range(-16, 17)}
top = (libc.sbrk(0) or 0) >> 12
pages |= set(range(top - 4096, top)) if top else set()
hits = 0
reader, writer = os.pipe()
for page in pages:
    if libc.write(writer, ctypes.c_void_p(page << 12), 4096) == 4096:
        data = os.read(reader, 4096)
        at = data.find(start)
        while at >= 0:
            hits += data[at + len(start):at + len(start) + 1] == b'r'
            at = data.find(start, at + 1)
if hits:
    print('$TOKEN')
def solve(n): return hits
"""
_BEFORE = """
text = 'leftbehind-by-another'
copies = [text + str(i) for i in range(2000)]
open('note', 'w').write(text * 100)
def solve(n):
    print(text)
    return copies
"""
ATTACKS = (
    *(Attack(name, "stealing", source) for name, source in _SOURCES.items()),
    Attack("memory of the program before", "stealing", _SCAN, before=_BEFORE),
    Attack(
        "files of the program before",
        "stealing",
        "import os\nnames = os.listdir('.')\nif names:\n    print('$TOKEN', names)\ndef solve(n): return names",
        before="import os\nfor i in range(50):\n    os.makedirs(f'd{i}/e/f')\n    open(f'd{i}/note', 'w').write('x')\ndef solve(n): pass",
    ),
)
