#!/bin/sh
# The part of machine.py that is mounts. Each verb runs in a mount namespace of its own.
#
#   machine.sh hold NAME SCRATCH [DISK]    join new control groups called NAME, become process 1 of the machine
#   machine.sh sweep NAME SCRATCH          remove those control groups
#
# SCRATCH is an empty folder to mount things on. What is written goes to the file system in the file DISK, which
# survives, or else to memory.
set -eu
verb=$1
name=$2
scratch=$3
disk=${4:-}

# The hierarchies a runtime needs: cgroup v2 where it has the controllers, else each of v1's.
hierarchies() {
    mount -t cgroup2 cgroup2 "$1"
    if grep -qw cpu "$1/cgroup.controllers"; then
        echo unified
    else
        cut -d : -f 2 /proc/self/cgroup | grep -E 'cpu|memory|devices|freezer|pids|blkio|name='
    fi
    umount "$1"
}

mount_hierarchies() {
    mount -t tmpfs tmpfs "$1"
    for hierarchy in $found; do
        mkdir "$1/${hierarchy#name=}"
        case $hierarchy in
            unified) mount -t cgroup2 cgroup2 "$1/unified" ;;
            name=*) mount -t cgroup -o "none,$hierarchy" cgroup "$1/${hierarchy#name=}" ;;
            *) mount -t cgroup -o "$hierarchy" cgroup "$1/$hierarchy" ;;
        esac
    done
}

# A group of v1's cpuset takes no process before its processors and memory nodes are listed.
inherit_cpuset() {
    for file in cpuset.cpus cpuset.mems; do
        [ ! -w "$1/$2/$file" ] || [ -e "$1/cgroup.controllers" ] || cat "$1/$file" >"$1/$2/$file"
    done
}

# Processes live in a leaf: a v2 group with processes cannot hand controllers down.
make_groups() {
    for top in "$scratch"/*; do
        mkdir "$top/$name"
        inherit_cpuset "$top" "$name"
        mkdir "$top/$name/machine"
        inherit_cpuset "$top/$name" machine
    done
}

join() {
    for group in "$scratch/"*"/$name/$1"; do
        echo $$ >"$group/cgroup.procs"
    done
}

remove_groups() {
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        find "$scratch"/*/"$name" -depth -type d -exec rmdir {} \; 2>/dev/null || true
        left=$(find "$scratch"/*/"$name" -maxdepth 0 2>/dev/null || true)
        [ -n "$left" ] || return 0
        sleep 0.1
    done
    echo "control groups are left after $attempt attempts: $left" >&2
    return 1
}

# Written files go to memory, and vanish with the machine; or to its disk.
cover() {
    mkdir -p "$store/$1.upper" "$store/$1.work"
    mount -t overlay -o "lowerdir=/$1,upperdir=$store/$1.upper,workdir=$store/$1.work" overlay "/$1"
}

# What a kubelet's node needs beyond a runtime's. The runtime's overlays do not stack on an overlay, so its folder is
# the disk itself. The rest of this machine's files are read-only, and mounts may propagate into containers.
become_node() {
    for folder in var/lib/containerd var/lib/kubelet var/log; do
        mkdir -p "$disk/$folder" "/$folder"
        mount --bind "$disk/$folder" "/$folder"
    done
    mount -t tmpfs tmpfs /tmp
    # kubelet sets these, which belong to no namespace, for the whole machine: it gets files to write to.
    mkdir -p "$scratch/sys"
    for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
        kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
        file=$scratch/sys/$(echo "${setting%=*}" | tr / .)
        echo "${setting#*=}" >"$file"
        mount --bind "$file" "/proc/sys/${setting%=*}"
    done
    cat /proc/sys/kernel/random/uuid >"$scratch/boot_id"
    mount --bind "$scratch/boot_id" /proc/sys/kernel/random/boot_id
    mount -o remount,bind,ro /
    mount --make-rshared /
}

# Entering a container's mount namespace ends at that namespace's root, which a container's own
# pivot_root replaces only if / was it before. In a chroot it was not; elsewhere this fails, and may.
leave_chroot() {
    nsenter --mount=/proc/self/ns/mnt --wd=/ sh -c 'pivot_root . . && umount --lazy .' 2>/dev/null || true
}

case $verb in
    hold)
        found=$(hierarchies "$scratch")
        export found
        mount_hierarchies "$scratch"
        make_groups
        join ""
        exec unshare --cgroup sh "$0" leaf "$name" "$scratch" "$disk"
        ;;
    leaf) # the control group namespace begins at NAME
        join machine/
        umount --recursive "$scratch"
        exec unshare --mount --pid --uts --fork --kill-child --propagation unchanged \
            sh "$0" first "$name" "$scratch" "$disk"
        ;;
    first)
        leave_chroot
        mount -t proc proc /proc
        mount -t tmpfs tmpfs "$scratch"
        store=$scratch
        if [ -n "$disk" ]; then
            hostname "$(basename "$disk" .img)"
            mkdir "$scratch/disk"
            mount -o loop,noatime "$disk" "$scratch/disk"
            disk=$scratch/disk
            store=$disk
        fi
        cover etc
        cover opt
        cover var/lib
        [ ! -d /usr/lib/cni ] || cover usr/lib/cni
        mount -t tmpfs -o mode=755 tmpfs /run
        mount -t sysfs sysfs /sys
        if [ "$found" = unified ]; then
            mount -t cgroup2 cgroup2 /sys/fs/cgroup
        else
            mount_hierarchies /sys/fs/cgroup
        fi
        [ -z "$disk" ] || become_node
        echo made
        exec cat
        ;;
    sweep)
        found=$(hierarchies "$scratch")
        mount_hierarchies "$scratch"
        remove_groups
        ;;
esac
