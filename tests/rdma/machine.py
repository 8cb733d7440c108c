#!/usr/bin/env python3
"""A small machine that has RDMA: QEMU emulates it, Soft-RoCE (the kernel module rdma_rxe) is its RDMA device rxe0.

It needs no rights, no KVM and no hardware. The host's root file system is its own, read-only under a RAM disk, so all that was built
on the host runs inside. The kernel is Debian's, fetched as a package and never installed.

  machine.py prepare    fetch the kernel, make the initramfs, unless they are there
  machine.py missing    say what is missing, a line each; status 1 if anything is

The cache is LOCKSTEP_RDMA_CACHE, else lockstep/rdma-machine in XDG_CACHE_HOME or ~/.cache.
"""

import gzip
import hashlib
import lzma
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
QEMU = "qemu-system-x86_64"
# Debian's packages of the programs that are needed.
PREPARING = {"apt-get": "apt", "dpkg-deb": "dpkg", "depmod": "kmod", "modprobe": "kmod", "cpio": "cpio", "busybox": "busybox-static"}
RUNNING = {QEMU: "qemu-system-x86", "setpriv": "util-linux", "busybox": "busybox-static", "rdma": "iproute2", "ip": "iproute2"}
PROVIDERS = "/etc/libibverbs.d/rxe.driver"  # of ibverbs-providers: without it no program sees the device
MODULES = ("virtio_pci virtio_net 9pnet_virtio 9p overlay rdma_rxe ib_uverbs rdma_cm rdma_ucm ib_umad "
           "crc32_generic").split()
APPLETS = "sh mount insmod mkdir switch_root poweroff sed".split()
SKIPPED = 77  # the exit status by which ctest knows a skipped test


class Unavailable(Exception):
    """The machine cannot be had here; the text says why, in a line."""


def cache():
    if "LOCKSTEP_RDMA_CACHE" in os.environ:
        return pathlib.Path(os.environ["LOCKSTEP_RDMA_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "lockstep/rdma-machine"


def image():
    """Where the kernel and the initramfs of this recipe are, or belong."""
    recipe = hashlib.sha256((HERE / "initramfs_init.sh").read_bytes() + " ".join(MODULES + APPLETS).encode()).hexdigest()[:12]
    return cache() / f"vmlinuz-{recipe}", cache() / f"initramfs-{recipe}.gz"


def without(programs):
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return sorted({f"{name} (package {package})" for name, package in programs.items() if not shutil.which(name, path=path)})


def missing():
    """What keeps the machine from being started, a line each."""
    if platform.machine() != "x86_64":
        return ["the emulated machine is an x86-64 one, this host is not"]
    lines = without(RUNNING)
    if not os.path.exists(PROVIDERS):
        lines.append("the provider of Soft-RoCE (package ibverbs-providers)")
    if not all(path.exists() for path in image()):
        lines.append("a kernel with rdma_rxe (tools/test --rdma fetches it)")
    return lines


def run(*command, **more):
    done = subprocess.run(list(map(str, command)), capture_output=True, check=False, stdin=subprocess.DEVNULL, **more)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise Unavailable(f"{command[0]} failed: {said[-1] if said else done.returncode}")
    return done.stdout


def kernel_package():
    found = re.search(r"Depends: (linux-image-\d\S*)", run("apt-cache", "depends", "linux-image-amd64").decode())
    if not found:
        raise Unavailable("no package linux-image-amd64 is to be had from this host's package sources")
    return found[1]


def module_bytes(path):
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix != ".ko":
        raise Unavailable(f"the kernel's modules are packed in a way that is not known here ({path.name})")
    return data


def make_initramfs(root, version, to):
    tree = root / "initramfs"
    for folder in ("bin", "modules", "proc", "sys", "dev", "root"):
        (tree / folder).mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), tree / "bin/busybox")
    for applet in APPLETS:
        (tree / "bin" / applet).symlink_to("busybox")
    order = []
    for module in MODULES:
        for line in run("modprobe", "-d", root, "-S", version, "--show-depends", module).decode().splitlines():
            if not line.startswith("insmod "):
                continue  # built in
            path = pathlib.Path(line.split()[1])
            name = path.name.split(".ko")[0] + ".ko"
            if name not in order:
                order.append(name)
                (tree / "modules" / name).write_bytes(module_bytes(path))
    (tree / "modules/order").write_text("".join(name + "\n" for name in order))
    shutil.copy(HERE / "initramfs_init.sh", tree / "init")
    (tree / "init").chmod(0o755)
    names = sorted(str(path.relative_to(tree)) for path in tree.rglob("*"))
    archive = run_with_input(["cpio", "-o", "-H", "newc", "--quiet"], "\n".join([".", *names]) + "\n", tree)
    to.write_bytes(gzip.compress(archive, 1))


def run_with_input(command, text, folder):
    done = subprocess.run(command, input=text.encode(), capture_output=True, cwd=folder, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{command[0]} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def prepare():
    """Fetches the kernel and makes the initramfs; Unavailable with the reason where that cannot be."""
    kernel, initramfs = image()
    if kernel.exists() and initramfs.exists():
        return
    if platform.machine() != "x86_64":
        raise Unavailable("the emulated machine is an x86-64 one, this host is not")
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    if lacking := without(PREPARING):
        raise Unavailable("missing: " + ", ".join(lacking))
    package = kernel_package()
    kernel.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kernel.parent) as folder:
        root = pathlib.Path(folder)
        root.chmod(0o755)  # apt fetches as a user of its own
        print(f"fetching {package}", flush=True)
        run("apt-get", "-q", "download", package, cwd=root)
        run("dpkg-deb", "-x", next(root.glob("*.deb")), root / "package")
        version = package.removeprefix("linux-image-")
        tree = root / "package"
        if not (tree / "lib").exists():
            (tree / "lib").symlink_to("usr/lib")
        run("depmod", "-b", tree, version)
        make_initramfs(tree, version, root / "initramfs.gz")
        os.replace(next((tree / "boot").glob("vmlinuz-*")), kernel)
        os.replace(root / "initramfs.gz", initramfs)


class Machine:
    """One emulated machine that runs `command` (words) with `environment` and is switched off at its end.

    `folder` is its /out, and may be shared by several: NAME.log has the command's output. `link` is one end of a socketpair that is
    its network, None: it has a network of its own with nobody else on it. As a context manager it is ended with the block.
    """

    def __init__(self, name, command, folder, address, environment=None, link=None, cores=1, memory_mib=2048):
        self.name = name
        self.folder = pathlib.Path(folder)
        exports = "".join(f"export {key}={shlex.quote(str(value))}\n" for key, value in (environment or {}).items())
        words = " ".join(shlex.quote(str(word)) for word in (HERE / "guest.sh", name, address, *command))
        (self.folder / f"{name}.init").write_text(f"{exports}exec /bin/bash {words}\n")
        kernel, initramfs = image()
        number = 1 + ord(name[0]) - ord("a")
        network = "user,id=n0,restrict=on" if link is None else f"socket,id=n0,fd={link.fileno()}"
        with open(self.folder / f"{name}.qemu", "wb") as said:
            self.process = self.start(name, network, kernel, initramfs, number, cores, memory_mib, link, said)

    def start(self, name, network, kernel, initramfs, number, cores, memory_mib, link, said):
        return subprocess.Popen(
            # With this process the machine goes too, whatever ends it.
            ["setpriv", "--pdeathsig", "KILL", QEMU, "-nodefaults", "-no-user-config", "-M", "q35", "-accel", "tcg,thread=multi,tb-size=512",
             # The emulated carry-less multiplication makes checksums slower than their plain computation.
             "-cpu", "max,-pclmulqdq", "-smp", str(cores), "-m", str(memory_mib), "-kernel", kernel, "-initrd", initramfs,
             "-append", "console=ttyS0 quiet panic=-1 mitigations=off nokaslr clocksource=acpi_pm net.ifnames=0 random.trust_cpu=1 "
                        f"lockstep.machine={name}",
             "-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
             "-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
             "-fsdev", f"local,id=out,path={self.folder},security_model=none",
             "-device", "virtio-9p-pci,fsdev=out,mount_tag=out",
             "-netdev", network, "-device", f"virtio-net-pci,netdev=n0,mac=52:54:00:00:00:{number:02x},romfile=",
             "-device", "virtio-rng-pci", "-display", "none", "-serial", f"file:{self.folder / name}.console", "-monitor", "none",
             "-no-reboot"],
            stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
            pass_fds=[] if link is None else [link.fileno()])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def text(self, suffix):
        path = self.folder / f"{self.name}.{suffix}"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, seconds):
        """The command's exit status; an error, with what the machine said, if it does not come to one."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"machine {self.name} did not end in {seconds} s:\n" + self.text("log")[-4000:]) from None
        status = self.text("status").strip()
        if not status:
            said = self.text("qemu") + self.text("console")
            raise AssertionError(f"machine {self.name} ended before its command:\n{said[-4000:]}\n{self.text('log')[-4000:]}")
        return int(status)


def skip_unless_available():
    """Ends this test as skipped, with a line that says why, where the machine cannot be started."""
    if lines := missing():
        print("skipped, no emulated machine: missing " + ", ".join(lines))
        sys.exit(SKIPPED)


def main(arguments):
    if arguments == ["missing"]:
        lines = missing()
        print("".join(line + "\n" for line in lines), end="")
        return 1 if lines else 0
    if arguments == ["prepare"]:
        try:
            prepare()
        except Unavailable as why:
            print(f"machine.py: {why}", file=sys.stderr)
            return 1
        return 0
    print(__doc__.strip())
    return 0 if arguments in (["-h"], ["--help"]) else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
