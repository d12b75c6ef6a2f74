# One pod comes and goes on a machine that has netmgr installed, with the backend $1: run in new namespaces.
set -e

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
backend: $1
END
netmgr agent --config /etc/netmgr/node.yaml 2>/run/agent.log &
netmgr cni install --bin-dir /opt/cni/bin --conf-dir /etc/cni/net.d >/run/install.log 2>&1
deadline=$(($(date +%s) + 60))
until netmgr node status >/run/status 2>&1; do
    [ "$(date +%s)" -lt $deadline ] || { cat /run/status /run/agent.log && exit 1; }
    sleep 0.2
done
cat /run/status

ip netns add pod
export CNI_CONTAINERID=pod CNI_IFNAME=eth0 CNI_NETNS=/run/netns/pod CNI_PATH=/opt/cni/bin
call() {
    echo '{"cniVersion": "1.1.0", "name": "netmgr", "type": "netmgr"}' | CNI_COMMAND=$1 /opt/cni/bin/netmgr
}
echo "added: $(call ADD)"
ip netns exec pod ip address
echo "pods: $(netmgr node pods -o json)"
call DEL
echo "left: $(ip netns exec pod ip -o link show eth0 2>&1)"
netmgr cni uninstall --bin-dir /opt/cni/bin
