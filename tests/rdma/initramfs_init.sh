#!/bin/sh
# The first program of the emulated machine (in its initramfs): loads the modules, lays a RAM disk over the host's root, which stays
# read-only, mounts the test's folder at /out and goes on with /out/NAME.init, NAME from the kernel's command line.
export PATH=/bin
stop() {
  echo "$*"
  poweroff -f
}
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do
  insmod "/modules/$module" || echo "the module $module does not load"
done </modules/order
name=$(sed -n 's/.*lockstep\.machine=\([a-z]*\).*/\1/p' /proc/cmdline)
options=trans=virtio,version=9p2000.L,msize=512000
mkdir -p /host /ram
mount -t 9p -o "ro,$options,cache=loose" host /host || stop "no root of the host"
mount -t tmpfs -o size=75% tmpfs /ram
mkdir -p /ram/upper /ram/work
mount -t overlay -o lowerdir=/host,upperdir=/ram/upper,workdir=/ram/work overlay /root || stop "no overlay"
for folder in proc sys dev; do
  mount -o move "/$folder" "/root/$folder"
done
mkdir -p /root/out /root/dev/pts /root/dev/shm
mount -t 9p -o "rw,$options,cache=none" out /root/out || stop "no folder for the results"
mount -t devpts devpts /root/dev/pts
mount -t tmpfs -o mode=1777 shm /root/dev/shm
mount -t tmpfs -o mode=755 run /root/run
mount -t tmpfs -o mode=1777 tmp /root/var/tmp
exec switch_root /root /bin/sh "/out/$name.init"
