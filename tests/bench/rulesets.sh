#!/bin/sh
# Instructions that a forwarded packet takes under each of several rulesets, in files of nft:
#
#   .ci/vm 6.12 tests/bench/rulesets.sh FILE…                     /dev/null is no rules
#   .ci/vm 6.12 env BYTES=1400 tests/bench/rulesets.sh FILE…
#
# A sender's datagrams pass a router that has the rules, on their way to a host that drops them as they arrive. The first
# of a connection is answered, so that the others belong to an established one. The router's interfaces are named from
# (10.128.0.1, the sender is .2) and to (203.0.113.1, the host is .2). PACKETS and BYTES change how many are sent of which
# size; each ruleset is measured ROUNDS times.
set -eu
[ -n "${NETMGR_VM:-}" ] || { echo "rulesets: run me in a virtual machine, see .ci/vm" >&2 && exit 1; }
cc -O2 -Wall -o /tmp/flood "$(dirname "$0")/flood.c"

for each in sender router host; do
    ip netns add $each
    ip -n $each link set lo up
done

# NAMESPACE INTERFACE of the peer, the router's INTERFACE, NETWORK. No packet waits for a neighbour to be found.
join() {
    ip -n router link add "$3" address 02:00:00:00:00:01 type veth \
        peer name "$2" address 02:00:00:00:00:02 netns "$1"
    ip -n router addr add "$4.1/24" dev "$3"
    ip -n "$1" addr add "$4.2/24" dev "$2"
    ip -n router link set "$3" up
    ip -n "$1" link set "$2" up
    ip -n router neigh replace "$4.2" lladdr 02:00:00:00:00:02 dev "$3"
    ip -n "$1" neigh replace "$4.1" lladdr 02:00:00:00:00:01 dev "$2"
}
join sender eth0 from 10.128.0
join host eth0 to 203.0.113
ip -n sender route add default via 10.128.0.1
ip -n host route add default via 203.0.113.1
ip netns exec router sysctl -qw net.ipv4.ip_forward=1
ip netns exec host nft -f - <<END
table netdev sink {
    counter arrived { }
    chain arriving {
        type filter hook ingress device eth0 priority 0;
        ip length ${BYTES:=64} counter name arrived drop;
    }
}
END
ip netns exec host python3 -c '
import socket

answering = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
answering.bind(("203.0.113.2", 9))
while True:
    answering.sendto(*answering.recvfrom(2048))
' &
until ip netns exec host grep -q :0009 /proc/net/udp; do
    sleep 0.1
done

for file; do
    ip netns exec router nft flush ruleset
    ip netns exec router nft -f "$file"
    for round in $(seq "${ROUNDS:-3}"); do
        # "INSTRUCTIONS SENT"
        set -- $(ip netns exec sender /tmp/flood 203.0.113.2 "${PACKETS:-50000}" "$BYTES")
        arrived=$(ip netns exec host nft reset counter netdev sink arrived | sed -n 's/.*packets \([0-9]*\).*/\1/p')
        echo "$file: $1 instructions per packet, round $round, $arrived of $2 packets arrived"
    done
done
