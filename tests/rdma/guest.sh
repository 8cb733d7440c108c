#!/bin/bash
# guest.sh NAME ADDRESS COMMAND...: inside the emulated machine, as its first process: network, Soft-RoCE on it as rxe0, then the
# command, whose output and exit status go to /out/NAME.log and /out/NAME.status. The machine is switched off at the end.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
name=$1 address=$2
shift 2
hostname "lockstep-$name"
ulimit -l unlimited
ulimit -n 65536

# RoCE's GIDs come from the addresses; UCX cannot use one that is still being checked for duplicates.
for device in default eth0; do
  echo 0 >"/proc/sys/net/ipv6/conf/$device/accept_dad"
done
ip link set lo up
ip link set eth0 mtu 4200 # packets of 4096 bytes, the largest that RDMA has
ip addr add "$address/24" dev eth0
ip link set eth0 up
rdma link add rxe0 type rxe netdev eth0
for ((i = 0; i < 100; ++i)); do
  grep -q ^fe80 /sys/class/infiniband/rxe0/ports/1/gids/0 && break
  sleep 0.1
done

"$@" >"/out/$name.log" 2>&1
echo $? >"/out/$name.status.new"
mv "/out/$name.status.new" "/out/$name.status"
sync
busybox poweroff -f
