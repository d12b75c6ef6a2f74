#!/bin/sh
# The part of machine.py that is mounts. Each verb runs in a mount namespace of its own.
#
#   machine.sh hold NAME SCRATCH    join new control groups called NAME, become process 1 of the machine
#   machine.sh sweep NAME SCRATCH   remove those control groups
#
# SCRATCH is an empty folder to mount things on.
set -eu
verb=$1
name=$2
scratch=$3

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

# Written files go to memory, and vanish with the machine.
cover() {
    mkdir -p "$scratch/$1.upper" "$scratch/$1.work"
    mount -t overlay -o "lowerdir=/$1,upperdir=$scratch/$1.upper,workdir=$scratch/$1.work" overlay "/$1"
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
        exec unshare --cgroup sh "$0" leaf "$name" "$scratch"
        ;;
    leaf) # the control group namespace begins at NAME
        join machine/
        umount --recursive "$scratch"
        exec unshare --mount --pid --fork --kill-child --propagation unchanged sh "$0" first "$name" "$scratch"
        ;;
    first)
        leave_chroot
        mount -t proc proc /proc
        mount -t tmpfs tmpfs "$scratch"
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
        echo made
        exec cat
        ;;
    sweep)
        found=$(hierarchies "$scratch")
        mount_hierarchies "$scratch"
        remove_groups
        ;;
esac
