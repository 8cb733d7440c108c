"""A small disk for a run directory: ext4 in a file, which can be filled up and which turns read-only as a broken one does. Needs root."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

from namespaces import CannotMake, sh

MIB = 48
FILLER = "filler"


class Disk:
    def __init__(self, folder):
        self.image, self.path = Path(folder) / "disk.img", Path(folder) / "disk"

    def __enter__(self):
        with open(self.image, "wb") as file:
            file.truncate(MIB << 20)
        self.path.mkdir()
        try:
            self._run("mkfs.ext4", "-q", "-m", "0", self.image)
            self._mount()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if os.path.ismount(self.path) and sh("umount", self.path).returncode != 0:
            sh("umount", "-l", self.path)
        self.image.unlink(missing_ok=True)

    def _run(self, *words):
        done = sh(*words)
        if done.returncode != 0:
            raise CannotMake(f"{' '.join(map(str, words))}: {(done.stderr or done.stdout).strip()}")

    def _mount(self):
        self._run("mount", "-o", "loop,errors=remount-ro", self.image, self.path)

    def fill(self):
        try:
            with open(self.path / FILLER, "wb", buffering=0) as file:
                block = bytes(1 << 16)
                while block:  # down to the last bytes
                    try:
                        if not file.write(block):
                            break
                    except OSError:
                        block = block[:len(block) // 2]
        except OSError:
            pass  # there was no room for its name either

    def make_room(self):
        """False: it has turned read-only meanwhile, and is repaired first."""
        try:
            (self.path / FILLER).unlink(missing_ok=True)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            return False
        return True

    def break_it(self):
        """The kernel believes that it has found an error, and turns the file system read-only."""
        device = sh("findmnt", "-n", "-o", "SOURCE", self.path).stdout.strip()
        Path(f"/sys/fs/ext4/{os.path.basename(device)}/trigger_fs_error").write_text("1", encoding="utf-8")

    def repair(self):
        """Nobody may have a file there open. The kernel writes to a broken disk again only once it is mounted nowhere, and other namespaces
        may have it: so its copy takes its place."""
        self._run("umount", self.path)
        whole = self.image.with_suffix(".repaired")
        shutil.copyfile(self.image, whole)
        os.replace(whole, self.image)
        subprocess.run(["e2fsck", "-fy", self.image], capture_output=True, check=False)
        self._mount()


def can_be_made(folder):
    if os.geteuid() != 0 or not all(map(shutil.which, ("mkfs.ext4", "findmnt", "e2fsck"))):
        return False
    try:
        with Disk(folder) as disk:
            device = sh("findmnt", "-n", "-o", "SOURCE", disk.path).stdout.strip()
            return os.access(f"/sys/fs/ext4/{os.path.basename(device)}/trigger_fs_error", os.W_OK)
    except (CannotMake, OSError):
        return False
    finally:
        disk_folder = Path(folder) / "disk"
        if disk_folder.is_dir() and not os.path.ismount(disk_folder):
            disk_folder.rmdir()
