"""Acting on the machine outside: network, processes, files, kernel."""

from __future__ import annotations

from ascent.sandbox.hostile import Attack

_C = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == 'x86_64'
def call(on_x86, on_arm, *words):
    return libc.syscall(on_x86 if x86 else on_arm, *words)
def did(what):
    try:
        open('$TARGET/' + what, 'w').close()
    except OSError:
        pass
    print('$TOKEN did', what)
"""
_SOURCES = {
    "TCP": "import socket\ntry:\n    s = socket.create_connection(('127.0.0.1', $PORT), 2)\n    s.sendall(b'$TOKEN')\n"
    "except OSError:\n    pass\ndef solve(n): return n",
    "TCP without blocking": "import socket\ntry:\n    s = socket.socket()\n    s.setblocking(False)\n"
    "    s.connect_ex(('127.0.0.1', $PORT))\n    import time\n    time.sleep(0.1)\n    s.send(b'$TOKEN')\nexcept OSError:\n    pass\n"
    "def solve(n): return n",
    "UDP": "import socket\ntry:\n    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'$TOKEN', ('127.0.0.1', $PORT))\n"
    "    print('$TOKEN')\nexcept OSError:\n    pass\ndef solve(n): return n",
    "Unix socket": "import socket\ntry:\n    s = socket.socket(socket.AF_UNIX)\n    s.connect('$UNIX')\n    s.sendall(b'$TOKEN')\n"
    "except OSError:\n    pass\ndef solve(n): return n",
    "Unix socket pair that connects": "import socket\na, b = socket.socketpair()\ntry:\n    a.connect('$UNIX')\n    a.sendall(b'$TOKEN')\n"
    "except OSError:\n    pass\ntry:\n    c, d = socket.socketpair(type=socket.SOCK_DGRAM)\n    c.sendto(b'$TOKEN', '$UNIX')\n"
    "except OSError:\n    pass\ndef solve(n): return n",
    "server": "import socket\ntry:\n    s = socket.socket()\n    s.bind(('127.0.0.1', 0))\n    s.listen()\n    print('$TOKEN')\n"
    "except OSError:\n    pass\ndef solve(n): return n",
    "download": "import urllib.request\ntry:\n    urllib.request.urlopen('http://127.0.0.1:$PORT/', timeout=2)\nexcept Exception:\n    pass\n"
    "def solve(n): return n",
    "subprocess": "import subprocess\ntry:\n    subprocess.run(['/usr/bin/touch', '$TARGET/subprocess'])\n    subprocess.Popen(['/bin/sleep', '30'])\n"
    "except OSError:\n    pass\ndef solve(n): return n",
    "os.system": "import os\nos.system('touch $TARGET/system; sleep 30 &')\ndef solve(n): return n",
    "posix_spawn": "import os\ntry:\n    os.posix_spawn('/usr/bin/touch', ['touch', '$TARGET/spawn'], {})\nexcept OSError:\n    pass\n"
    "def solve(n): return n",
    "exec": "import os\ntry:\n    os.execv('/usr/bin/touch', ['touch', '$TARGET/exec'])\nexcept OSError:\n    pass\ndef solve(n): return n",
    "exec from memory": _C + "import shutil\ntry:\n    fd = os.memfd_create('x')\n    os.write(fd, open('/bin/true', 'rb').read())\n"
    "    os.execve(fd, ['true'], {})\nexcept OSError:\n    pass\ndef solve(n): return n",
    "exec through the loader": "import os\nfor loader in ('/lib64/ld-linux-x86-64.so.2', '/lib/ld-linux-aarch64.so.1'):\n    try:\n"
    "        os.execv(loader, [loader, '/usr/bin/touch', '$TARGET/loader'])\n    except OSError:\n        pass\ndef solve(n): return n",
    "fork that stays": "import os, time\ntry:\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n            time.sleep(30)\n        os._exit(0)\n"
    "except OSError:\n    pass\ndef solve(n): return n",
    "vfork and clone": _C + "for flags in (17, 0x100 | 17, 0x10000000 | 17, 0x20000000 | 17):\n    pid = call(56, 220, flags, 0, 0, 0, 0)\n"
    "    if pid == 0:\n        import time\n        time.sleep(30)\n        os._exit(0)\n    if pid > 0:\n        did('clone')\n"
    "def solve(n): return n",
    "clone3": _C + "args = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17)\npid = call(435, 435, ctypes.byref(args), 88)\n"
    "if pid == 0:\n    import time\n    time.sleep(30)\n    os._exit(0)\nif pid > 0:\n    did('clone3')\ndef solve(n): return n",
    "kills the victim": "import os, signal\nfor sig in (signal.SIGTERM, signal.SIGKILL):\n    try:\n        os.kill($VICTIM, sig)\n    except OSError:\n        pass\n"
    "def solve(n): return n",
    "kills its parent and group": "import os, signal\nfor pid in (os.getppid(), 0, -os.getppid()):\n    try:\n        if pid:\n            os.kill(pid, signal.SIGKILL)\n"
    "    except OSError:\n        pass\ndef solve(n): return n",
    "kills everything": "import os\ntry:\n    os.setpgid(0, 0)\nexcept OSError:\n    pass\n"
    "if os.getuid() != 0 and os.getuid() > 100000:\n    try:\n        os.kill(-1, 9)\n    except OSError:\n        pass\ndef solve(n): return n",
    "signals through a descriptor": "import fcntl, os, signal\nr, w = os.pipe()\ntry:\n    fcntl.fcntl(r, 10, int(signal.SIGKILL))\n"
    "    fcntl.fcntl(r, fcntl.F_SETOWN, $VICTIM)\n    fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)\n    os.write(w, b'x')\nexcept OSError:\n    pass\n"
    "def solve(n): return n",
    "pidfd signal": _C + "fd = call(434, 434, $VICTIM, 0)\nif fd >= 0:\n    call(424, 424, fd, 9, 0, 0)\ndef solve(n): return n",
    "ptrace": _C + "if call(101, 117, 16, $VICTIM, 0, 0) == 0:\n    did('ptrace')\n    call(101, 117, 17, $VICTIM, 0, 0)\n"
    "if call(101, 117, 0, 0, 0, 0) == 0:\n    did('traceme')\ndef solve(n): return n",
    "memory of another process": _C + "buffer = ctypes.create_string_buffer(64)\n"
    "iov = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 64)\n"
    "if call(310, 270, os.getppid(), iov, 1, iov, 1, 0) > 0:\n    did('process_vm_readv')\ndef solve(n): return n",
    "limits of another process": _C + "limit = (ctypes.c_uint64 * 2)(1, 1)\n"
    "for pid in (os.getppid(), $VICTIM):\n    if call(302, 261, pid, 7, limit, 0) == 0:\n        did('prlimit')\ndef solve(n): return n",
    "limits of its own": "import resource\nfor which in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):\n"
    "    try:\n        resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n        print('$TOKEN')\n"
    "    except (OSError, ValueError):\n        pass\ndef solve(n): return n",
    "priority of others": "import os\nfor pid in (os.getppid(), $VICTIM):\n    try:\n        os.setpriority(os.PRIO_PROCESS, pid, 19)\n        print('$TOKEN')\n"
    "    except OSError:\n        pass\n    try:\n        os.sched_setaffinity(pid, {0})\n        print('$TOKEN')\n    except OSError:\n        pass\n"
    "def solve(n): return n",
    "namespaces": _C + "for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x8000000):\n    if call(272, 97, flag) == 0:\n        did('unshare')\n"
    "def solve(n): return n",
    "mount and chroot": _C + "if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0:\n    did('mount')\n    libc.umount2(b'/tmp', 2)\n"
    "if libc.chroot(b'.') == 0:\n    did('chroot')\ndef solve(n): return n",
    "becomes root": _C + "for name in ('setuid', 'setgid', 'seteuid', 'setfsuid'):\n    getattr(libc, name)(0)\n"
    "if os.getuid() == 0 or os.geteuid() == 0:\n    try:\n        open('/etc/shadow').read()\n        did('root')\n    except OSError:\n        pass\n"
    "def solve(n): return n",
    "capabilities": _C + "header = (ctypes.c_uint32 * 2)(0x20080522, 0)\ndata = (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)\n"
    "if call(126, 91, header, data) == 0:\n    did('capset')\ndef solve(n): return n",
    "chmod and chown": "import os\nfor change in (lambda: os.chmod('$SECRET', 0o777), lambda: os.chown('$SECRET', os.getuid(), -1),\n"
    "               lambda: os.utime('$SECRET', (0, 0)), lambda: os.setxattr('$SECRET', 'user.x', b'y')):\n    try:\n        change()\n        print('$TOKEN')\n"
    "    except OSError:\n        pass\ndef solve(n): return n",
    "writes to a shared folder": "for path in ('$TARGET/written', '/tmp/$TOKEN', '/dev/shm/$TOKEN', '/var/tmp/$TOKEN'):\n    try:\n"
    "        open(path, 'w').write('x')\n    except OSError:\n        pass\ndef solve(n): return n",
    "overwrites and deletes": "import os\nfor change in (lambda: open('$SECRET', 'a').write('x'), lambda: os.truncate('$SECRET', 0),\n"
    "               lambda: os.unlink('$SECRET'), lambda: os.rename('$SECRET', '$SECRET.x')):\n    try:\n        change()\n    except OSError:\n        pass\n"
    "def solve(n): return n",
    "moves into a shared folder": "import os\nopen('mine', 'w').write('x')\nfor move in (os.rename, os.link, os.symlink):\n    try:\n        move('mine', '$TARGET/moved')\n"
    "    except OSError:\n        pass\ntry:\n    os.mkdir('$TARGET/folder')\nexcept OSError:\n    pass\ntry:\n    os.mkfifo('$TARGET/fifo')\nexcept OSError:\n    pass\n"
    "def solve(n): return n",
    "shared memory": _C + "key = call(29, 194, 0x5eed, 4096, 0o1666)\nif key >= 0:\n    did('shmget')\n    libc.shmctl(key, 0, None)\n"
    "if libc.mq_open(b'/x', 66, 0o666, None) >= 0:\n    did('mq_open')\n    libc.mq_unlink(b'/x')\ndef solve(n): return n",
    "keyring": _C + "if call(248, 217, b'user', b'x', b'y', 1, -3) > 0:\n    did('add_key')\nif call(250, 219, 0, -3, 1) > 0:\n    did('keyctl')\n"
    "def solve(n): return n",
    "kernel doors": _C + "buffer = ctypes.create_string_buffer(256)\nfor name, x, a, words in (('bpf', 321, 280, (0, buffer, 48)),\n"
    "        ('io_uring', 425, 425, (4, buffer)), ('userfaultfd', 323, 282, (1,)), ('perf', 298, 241, (buffer, 0, -1, -1, 0)),\n"
    "        ('memfd', 319, 279, (b'x', 0)), ('personality', 135, 92, (0x0040000,))):\n    if call(x, a, *words) > 0:\n        did(name)\n"
    "def solve(n): return n",
    "32-bit system calls": _C + "import mmap\nif x86:\n    # kill(victim, 9) through int 0x80\n"
    "    code = b'\\xb8\\x25\\0\\0\\0\\xbb' + ($VICTIM).to_bytes(4, 'little') + b'\\xb9\\x09\\0\\0\\0\\xcd\\x80\\xc3'\n"
    "    area = mmap.mmap(-1, 4096, prot=7)\n    area.write(code)\n"
    "    address = ctypes.addressof(ctypes.c_char.from_buffer(area))\n    ctypes.CFUNCTYPE(ctypes.c_int)(address)()\n"
    "def solve(n): return n",
    "x32 system calls": _C + "if x86:\n    libc.syscall(0x40000000 + 62, $VICTIM, 9)\n    libc.syscall(0x40000000 + 41, 2, 1, 0)\n    libc.syscall(512 + 0x40000000, 9, 0, 0)\n"
    "def solve(n): return n",
    "terminal": "import fcntl\nfor path in ('/dev/tty', '/dev/pts/0', '/dev/console', '/proc/self/fd/0'):\n    try:\n"
    "        fcntl.ioctl(open(path), 0x5412, b'x')\n        print('$TOKEN')\n    except OSError:\n        pass\ndef solve(n): return n",
    "devices": "for path in ('/dev/mem', '/dev/kmsg', '/dev/vda', '/dev/sda', '/proc/sysrq-trigger', '/sys/power/state', '/dev/fuse', '/dev/kvm'):\n"
    "    for mode in ('rb', 'ab'):\n        try:\n            open(path, mode).close()\n            print('$TOKEN', path)\n        except OSError:\n            pass\n"
    "def solve(n): return n",
    "multiprocessing": "import multiprocessing, os\ndef write():\n    open('$TARGET/multi', 'w').close()\ntry:\n"
    "    p = multiprocessing.get_context('fork').Process(target=write)\n    p.start()\n    p.join(2)\nexcept OSError:\n    pass\ndef solve(n): return n",
    "landlock and seccomp again": _C + "call(317, 277, 1, 0, 0)\nlibc.prctl(22, 2, 0)\nlibc.prctl(4, 1, 0, 0, 0)\nlibc.prctl(38, 0, 0, 0, 0)\n"
    "if libc.prctl(8, 1, 0, 0, 0) == 0 or libc.prctl(47, 2, 2, 0, 0) == 0 or libc.prctl(36, 1, 0, 0, 0) == 0:\n    did('prctl')\ndef solve(n): return n",
}
ATTACKS = tuple(Attack(name, "reaching out", source) for name, source in _SOURCES.items())
