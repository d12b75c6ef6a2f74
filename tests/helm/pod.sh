# One pod comes and goes on a machine that has netmgr installed, with the backend $1: run in new namespaces.
#
#   pod.sh BACKEND           the agent is started as it is
#   pod.sh BACKEND GROUP     systemd runs the package's units, in a new control group called GROUP, and the package is
#                            installed again while the pod runs
set -e

backend=$1
group=$2

if [ -n "$group" ] && [ -z "$inside" ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mkdir "/sys/fs/cgroup/$group"
    echo 0 >"/sys/fs/cgroup/$group/cgroup.procs"
    umount /sys/fs/cgroup
    inside=yes exec unshare --cgroup sh "$0" "$@"
fi

fail() {
    cat /run/*.log /run/status
    exit 1
}

# Waits until a command succeeds.
until_done() {
    deadline=$(($(date +%s) + 60))
    until "$@" >/run/status 2>&1; do
        [ "$(date +%s)" -lt $deadline ] || fail
        sleep 0.2
    done
}

beside_systemd() {
    nsenter --target="$(pgrep --exact systemd)" --mount --pid --cgroup "$@"
}

# Only the package's units: Debian's own would set up the machine that all of this runs on.
start_systemd() {
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mkdir /run/units
    for target in sysinit basic shutdown network-online multi-user; do
        echo "[Unit]" >/run/units/$target.target
    done
    cp /lib/systemd/system/modprobe@.service /lib/systemd/system/netmgr-*.service /run/units
    for unit in agent exporter; do
        mkdir /run/units/netmgr-$unit.service.d
        printf '[Service]\nStandardError=append:/run/%s.log\n' $unit >/run/units/netmgr-$unit.service.d/log.conf
    done
    mount --make-shared /run
    unshare --mount --propagation=slave --pid --fork --mount-proc --kill-child sh -ec '
        mount --bind /proc/sys /proc/sys
        mount --bind /proc/sys/net /proc/sys/net
        mount -o remount,bind,ro /proc/sys
        exec env -i PATH="$PATH" container=netmgr SYSTEMD_UNIT_PATH=/run/units SYSTEMD_GENERATOR_PATH=/none \
            /lib/systemd/systemd --unit=multi-user.target --log-target=null --show-status=no' &
    until_done pgrep --exact systemd
    until_done beside_systemd systemctl is-system-running
    beside_systemd systemctl start netmgr-agent netmgr-exporter
}

main_process() {
    beside_systemd systemctl show --value --property=MainPID netmgr-agent
}

scraped() {
    python3 -c 'import urllib.request as r; print(r.urlopen("http://127.0.0.1:9119/metrics").read().decode())' |
        grep -x 'netmgr_up 1.0'
}

ip link set lo up
ip link add uplink type veth peer name router
ip link set router up
ip link set uplink up
ip address add 10.64.0.10/24 dev uplink
ip route add default via 10.64.0.1
mkdir -p /var/lib/netmgr /opt/cni
mount -t tmpfs tmpfs /var/lib/netmgr
mount -t tmpfs tmpfs /opt/cni

cat >/etc/netmgr/node.yaml <<END
apiVersion: netmgr.io/v1alpha1
kind: Node
node: {name: a, addresses: [10.64.0.10]}
ranges: [10.128.0.16/28, "2001:db8:128:1::/112"]
backend: $backend
reader_group: netmgr
END
if [ -n "$group" ]; then
    start_systemd
else
    netmgr agent --config /etc/netmgr/node.yaml 2>/run/agent.log &
fi
netmgr cni install --bin-dir /opt/cni/bin --conf-dir /etc/cni/net.d >/run/install.log 2>&1
until_done netmgr node status
cat /run/status

ip netns add pod
export CNI_CONTAINERID=pod CNI_IFNAME=eth0 CNI_NETNS=/run/netns/pod CNI_PATH=/opt/cni/bin
call() {
    echo '{"cniVersion": "1.1.0", "name": "netmgr", "type": "netmgr"}' | CNI_COMMAND=$1 /opt/cni/bin/netmgr
}
echo "added: $(call ADD)"
ip netns exec pod ip address
if [ -n "$group" ]; then
    until_done scraped
    before=$(main_process)
    mv /usr/sbin/policy-rc.d /run # it lets new packages start nothing
    beside_systemd dpkg --install /netmgr.deb
    mv /run/policy-rc.d /usr/sbin
    until_done netmgr node status
    [ "$(main_process)" != "$before" ] && echo "restarted by its upgrade"
    until_done scraped
fi
echo "pods: $(netmgr node pods -o json)"
call DEL
echo "left: $(ip netns exec pod ip -o link show eth0 2>&1)"
netmgr cni uninstall --bin-dir /opt/cni/bin
