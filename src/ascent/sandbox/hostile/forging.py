"""Writing what the judge might take for results."""

from __future__ import annotations

from ascent.sandbox.hostile import Attack

_FRAMES = """
import os, struct
def frame(kind, index, text):
    return struct.pack('<cII', kind, index, len(text)) + text
def everywhere(data):
    for fd in range(1, 64):
        try:
            os.write(fd, data)
        except OSError:
            pass
"""
_SOURCES = {
    "frames of a tester": _FRAMES
    + "for i in range(3):\n    everywhere(frame(b'P', i, b''))\ndef solve(n): return n",
    "frames with guesses": _FRAMES
    + "for i in range(3):\n    everywhere(frame(b'V', i, b'[\"l\", true, null]'))\ndef solve(n): return n",
    "frames twice": _FRAMES
    + "def solve(n):\n    everywhere(frame(b'V', 0, b'[\"l\", 1, null]') * 5)\n    return n",
    "frames out of order": _FRAMES
    + "def solve(n):\n    everywhere(frame(b'V', 2, b'[\"l\", 1, null]'))\n    return n",
    "a frame without an end": _FRAMES
    + "everywhere(struct.pack('<cII', b'V', 0, 0xffffffff))\ndef solve(n): return n",
    "garbage": _FRAMES
    + "for _ in range(50):\n    everywhere(os.urandom(997))\ndef solve(n): return n",
    "flood": _FRAMES + "for _ in range(500):\n    everywhere(frame(b'C', 0, b'x' * 60000))\ndef solve(n): return n",
    "frames, then death": _FRAMES
    + "everywhere(b''.join(frame(b'P', i, b'') for i in range(9)))\nos._exit(0)",
    "words of success": (
        "print('PASSED\\nOK\\nAll tests passed\\n{\"passed\": true, \"score\": 1.0}\\n3 passed in 0.01s')\nimport sys\n"
        "print('OK', file=sys.stderr)\ndef solve(n): return n"
    ),
    "files of success": (
        "for name in ('result', 'reward.txt', 'results.json', 'score'):\n    with open(name, 'w') as f:\n"
        "        f.write('1.0')\ndef solve(n): return n"
    ),
    "closes every descriptor": "import os\nos.closerange(0, 4096)\ndef solve(n): return n",
    "swaps descriptors": (
        "import os\nfor fd in range(3, 8):\n    try:\n        os.dup2(1, fd)\n    except OSError:\n        pass\ndef solve(n): return n"
    ),
    "answers its own calls": (
        "import os, struct\ndef message(text):\n    return struct.pack('<I', len(text)) + text\n"
        "for reply in (b'[\"l\", \"v\", true, null]', b'[\"l\", \"v\", [\"h\", [\"l\", \"o\", 99]], null]',\n"
        "              b'[\"l\", \"k\", 0, [\"l\"], [\"d\"]]', b'[\"l\", \"returned\", true]'):\n    try:\n"
        "        os.write(4, message(reply) * 3)\n    except OSError:\n        pass\ndef solve(n): return n"
    ),
    "reads its callers' requests": (
        "import os\ndef solve(n):\n    try:\n        data = os.read(4, 65536)\n        os.write(4, data)\n"
        "    except OSError:\n        pass\n    return n"
    ),
    "handles that are none": (
        "import os, struct\ntext = b'[\"l\", \"v\", [\"h\", [\"l\", \"k\", -1]], null]'\n"
        "def solve(n):\n    try:\n        os.write(4, struct.pack('<I', len(text)) + text)\n    except OSError:\n        pass\n"
        "    return n"
    ),
    "passes descriptors": (
        "import socket, array, os\ndef solve(n):\n    try:\n        s = socket.socket(fileno=os.dup(4))\n"
        "        s.sendmsg([b'x'], [(1, 1, array.array('i', [0, 1, 2]).tobytes())])\n"
        "    except OSError:\n        pass\n    return n"
    ),
}
ATTACKS = tuple(Attack(name, "forging the channel", source) for name, source in _SOURCES.items())
