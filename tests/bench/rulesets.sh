#!/bin/sh
# Instructions that a forwarded packet takes under each of several rulesets, in files of nft:
#
#   .ci/vm 6.12 tests/bench/rulesets.sh FILE…                     /dev/null is no rules
#   .ci/vm 6.12 env BYTES=1400 tests/bench/rulesets.sh FILE…
#
# A sender's datagrams pass a router that has the rules, on their way to a host that drops them as they arrive, and a
# host's that answer them do on theirs to the sender. All belong to an established connection. The router's interfaces
# are named from (10.128.0.1 and fd00:128::1, the sender is 2) and to (203.0.113.1 and 2001:db8::1, the host is 2).
# PACKETS and BYTES change how many are sent of which size; each ruleset is measured ROUNDS times.
set -eu
[ -n "${NETMGR_VM:-}" ] || { echo "rulesets: run me in a virtual machine, see .ci/vm" >&2 && exit 1; }
cc -O2 -Wall -o /tmp/flood "$(dirname "$0")/flood.c"

for each in sender router host; do
    ip netns add $each
    ip -n $each link set lo up
    ip netns exec $each sysctl -qw net.ipv6.conf.default.accept_dad=0
done

# NAMESPACE INTERFACE of the peer, the router's INTERFACE, its networks. No packet waits for a neighbour to be found.
join() {
    ip -n router link add "$3" address 02:00:00:00:00:01 type veth \
        peer name "$2" address 02:00:00:00:00:02 netns "$1"
    ip -n router link set "$3" up
    ip -n "$1" link set "$2" up
    for network in "$4" "$5"; do
        ip -n router addr add "${network}1/24" dev "$3"
        ip -n "$1" addr add "${network}2/24" dev "$2"
        ip -n router neigh replace "${network}2" lladdr 02:00:00:00:00:02 dev "$3"
        ip -n "$1" neigh replace "${network}1" lladdr 02:00:00:00:00:01 dev "$2"
        ip -n "$1" route add default via "${network}1"
    done
    ip netns exec "$1" nft -f - <<END
table netdev sink {
    counter arrived { }
    chain arriving {
        type filter hook ingress device $2 priority 0;
        meta l4proto udp meta length ${BYTES:=64} counter name arrived drop;
    }
}
END
}
join sender eth0 from 10.128.0. fd00:128::
join host eth0 to 203.0.113. 2001:db8::
ip netns exec router sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1

# ADDRESS of the host, DIRECTION, who RECEIVES
flood() {
    way="$2 $1"
    # "INSTRUCTIONS SENT"
    set -- "$3" $(ip netns exec sender /tmp/flood "$1" "${PACKETS:-50000}" "$BYTES" /run/netns/host "$2")
    arrived=$(ip netns exec "$1" nft reset counter netdev sink arrived | sed -n 's/.*packets \([0-9]*\).*/\1/p')
    echo "$file: $2 instructions per packet $way, round $round, $arrived of $3 packets arrived"
}

for file; do
    ip netns exec router nft flush ruleset
    ip netns exec router nft -f "$file"
    for round in $(seq "${ROUNDS:-3}"); do
        flood 203.0.113.2 out host
        flood 203.0.113.2 in sender
        flood 2001:db8::2 out host
        flood 2001:db8::2 in sender
    done
done
