ipset create netmgr-internal4 hash:net family inet maxelem 65536
ipset -exist add netmgr-internal4 0.0.0.0/8
ipset -exist add netmgr-internal4 10.0.0.0/8
ipset -exist add netmgr-internal4 100.64.0.0/10
ipset -exist add netmgr-internal4 127.0.0.0/8
ipset -exist add netmgr-internal4 168.63.129.16/32
ipset -exist add netmgr-internal4 169.254.0.0/16
ipset -exist add netmgr-internal4 172.16.0.0/12
ipset -exist add netmgr-internal4 192.168.0.0/16
ipset -exist add netmgr-internal4 198.18.0.0/15
ipset -exist add netmgr-internal4 224.0.0.0/3
ipset create netmgr-ranges4 hash:net family inet maxelem 65536
ipset create netmgr-internal6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-internal6 ::/127
ipset -exist add netmgr-internal6 100::/64
ipset -exist add netmgr-internal6 fc00::/7
ipset -exist add netmgr-internal6 fe80::/10
ipset -exist add netmgr-internal6 ff00::/8
ipset create netmgr-ranges6 hash:net family inet6 maxelem 65536
ipset create netmgr-cluster4 hash:net family inet maxelem 65536
ipset -exist add netmgr-cluster4 10.1.0.0/16
ipset create netmgr-remote-in4 hash:net family inet maxelem 65536
ipset create netmgr-remote-out4 hash:net family inet maxelem 65536
ipset create netmgr-cluster6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-cluster6 fd00:1::/48
ipset create netmgr-remote-in6 hash:net family inet6 maxelem 65536
ipset create netmgr-remote-out6 hash:net family inet6 maxelem 65536
ipset create netmgr-pod-in4 hash:ip family inet maxelem 65536 counters
ipset -exist add netmgr-pod-in4 10.1.0.5
ipset -exist add netmgr-pod-in4 10.1.0.6
ipset create netmgr-pod-out4 hash:ip family inet maxelem 65536 counters
ipset -exist add netmgr-pod-out4 10.1.0.5
ipset -exist add netmgr-pod-out4 10.1.0.6
ipset create netmgr-pod-in6 hash:ip family inet6 maxelem 65536 counters
ipset -exist add netmgr-pod-in6 2001:db8:1::5
ipset create netmgr-pod-out6 hash:ip family inet6 maxelem 65536 counters
ipset -exist add netmgr-pod-out6 2001:db8:1::5
iptables-legacy -w -t mangle -I INPUT 1 ! -i lo -m set ! --match-set netmgr-internal4 src -m comment --comment "iptables-exporter me traffic=internet-in"
ip6tables-legacy -w -t mangle -I INPUT 1 ! -i lo -m set ! --match-set netmgr-internal6 src -m comment --comment "iptables-exporter me traffic=internet-in"
iptables-legacy -w -t mangle -I FORWARD 1 ! -o nm+ -m set ! --match-set netmgr-internal4 dst -m comment --comment "iptables-exporter me traffic=internet-out"
iptables-legacy -w -t mangle -I FORWARD 2 ! -i nm+ -m set ! --match-set netmgr-internal4 src -m comment --comment "iptables-exporter me traffic=internet-in"
iptables-legacy -w -t mangle -N NETMGR-FORWARD
iptables-legacy -w -t mangle -N NETMGR-FORWARD-2
iptables-legacy -w -t mangle -A NETMGR-FORWARD ! -i nm+ -m comment --comment "netmgr NETMGR-FORWARD-2" -g NETMGR-FORWARD-2
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 224.0.0.0/3 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 224.0.0.0/3" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 0.0.0.0/8 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 0.0.0.0/8" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 10.0.0.0/8 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 10.0.0.0/8" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 127.0.0.0/8 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 127.0.0.0/8" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 100.64.0.0/10 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 100.64.0.0/10" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 172.16.0.0/12 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 172.16.0.0/12" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 198.18.0.0/15 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 198.18.0.0/15" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 169.254.0.0/16 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 169.254.0.0/16" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 192.168.0.0/16 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 192.168.0.0/16" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 168.63.129.16/32 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 168.63.129.16/32" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m comment --comment "netmgr arrived v4"
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m set --match-set netmgr-pod-in4 dst -m comment --comment "netmgr pod internet-in v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m set --match-set netmgr-cluster4 dst -m comment --comment "netmgr remote pods internet-in v4"
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m set ! --match-set netmgr-cluster4 dst -m comment --comment "netmgr unattributed internet-in v4"
iptables-legacy -w -t mangle -I FORWARD -j NETMGR-FORWARD
ip6tables-legacy -w -t mangle -I FORWARD 1 ! -o nm+ -m set ! --match-set netmgr-internal6 dst -m comment --comment "iptables-exporter me traffic=internet-out"
ip6tables-legacy -w -t mangle -I FORWARD 2 ! -i nm+ -m set ! --match-set netmgr-internal6 src -m comment --comment "iptables-exporter me traffic=internet-in"
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD-2
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD ! -i nm+ -m comment --comment "netmgr NETMGR-FORWARD-2" -g NETMGR-FORWARD-2
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s fc00::/7 -m comment --comment "netmgr NETMGR-FORWARD-2 src in fc00::/7" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s ff00::/8 -m comment --comment "netmgr NETMGR-FORWARD-2 src in ff00::/8" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s fe80::/10 -m comment --comment "netmgr NETMGR-FORWARD-2 src in fe80::/10" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 100::/64 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 100::/64" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s ::/127 -m comment --comment "netmgr NETMGR-FORWARD-2 src in ::/127" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m comment --comment "netmgr arrived v6"
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m set --match-set netmgr-pod-in6 dst -m comment --comment "netmgr pod internet-in v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m set --match-set netmgr-cluster6 dst -m comment --comment "netmgr remote pods internet-in v6"
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m set ! --match-set netmgr-cluster6 dst -m comment --comment "netmgr unattributed internet-in v6"
ip6tables-legacy -w -t mangle -I FORWARD -j NETMGR-FORWARD
iptables-legacy -w -t mangle -I OUTPUT 1 ! -o lo -m set ! --match-set netmgr-internal4 dst -m comment --comment "iptables-exporter me traffic=internet-out"
ip6tables-legacy -w -t mangle -I OUTPUT 1 ! -o lo -m set ! --match-set netmgr-internal6 dst -m comment --comment "iptables-exporter me traffic=internet-out"
iptables-legacy -w -t mangle -N NETMGR-BEFORE_SRCNAT
iptables-legacy -w -t mangle -N NETMGR-BEFORE_SRCNAT-2
iptables-legacy -w -t mangle -N NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -N NETMGR-BEFORE_SRCNAT-4
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT ! -o nm+ -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2" -g NETMGR-BEFORE_SRCNAT-2
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT -m comment --comment "netmgr rest of NETMGR-BEFORE_SRCNAT-2" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 224.0.0.0/3 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 224.0.0.0/3" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 0.0.0.0/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 0.0.0.0/8" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 10.0.0.0/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 10.0.0.0/8" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 127.0.0.0/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 127.0.0.0/8" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 100.64.0.0/10 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 100.64.0.0/10" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 172.16.0.0/12 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 172.16.0.0/12" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 198.18.0.0/15 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 198.18.0.0/15" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 169.254.0.0/16 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 169.254.0.0/16" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 192.168.0.0/16 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 192.168.0.0/16" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 168.63.129.16/32 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 168.63.129.16/32" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -m set --match-set netmgr-pod-out4 src -m comment --comment "netmgr pod internet-out v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -m addrtype ! --src-type LOCAL -m set --match-set netmgr-cluster4 src -m comment --comment "netmgr remote pods internet-out v4"
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -m addrtype ! --src-type LOCAL -m set ! --match-set netmgr-cluster4 src -m comment --comment "netmgr unattributed internet-out v4"
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -m comment --comment "netmgr rest in NETMGR-BEFORE_SRCNAT-2" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-3 ! -i nm+ -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4" -j NETMGR-BEFORE_SRCNAT-4
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 224.0.0.0/3 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 224.0.0.0/3" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 0.0.0.0/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 0.0.0.0/8" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 10.0.0.0/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 10.0.0.0/8" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 127.0.0.0/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 127.0.0.0/8" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 100.64.0.0/10 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 100.64.0.0/10" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 172.16.0.0/12 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 172.16.0.0/12" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 198.18.0.0/15 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 198.18.0.0/15" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 169.254.0.0/16 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 169.254.0.0/16" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 192.168.0.0/16 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 192.168.0.0/16" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 168.63.129.16/32 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 168.63.129.16/32" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -m addrtype ! --src-type LOCAL -m comment --comment "netmgr delivered v4"
iptables-legacy -w -t mangle -I POSTROUTING -j NETMGR-BEFORE_SRCNAT
ip6tables-legacy -w -t mangle -N NETMGR-BEFORE_SRCNAT
ip6tables-legacy -w -t mangle -N NETMGR-BEFORE_SRCNAT-2
ip6tables-legacy -w -t mangle -N NETMGR-BEFORE_SRCNAT-3
ip6tables-legacy -w -t mangle -N NETMGR-BEFORE_SRCNAT-4
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT ! -o nm+ -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2" -g NETMGR-BEFORE_SRCNAT-2
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT -m comment --comment "netmgr rest of NETMGR-BEFORE_SRCNAT-2" -g NETMGR-BEFORE_SRCNAT-3
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d fc00::/7 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in fc00::/7" -g NETMGR-BEFORE_SRCNAT-3
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d ff00::/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in ff00::/8" -g NETMGR-BEFORE_SRCNAT-3
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d fe80::/10 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in fe80::/10" -g NETMGR-BEFORE_SRCNAT-3
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 100::/64 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 100::/64" -g NETMGR-BEFORE_SRCNAT-3
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d ::/127 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in ::/127" -g NETMGR-BEFORE_SRCNAT-3
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -m set --match-set netmgr-pod-out6 src -m comment --comment "netmgr pod internet-out v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -m addrtype ! --src-type LOCAL -m set --match-set netmgr-cluster6 src -m comment --comment "netmgr remote pods internet-out v6"
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -m addrtype ! --src-type LOCAL -m set ! --match-set netmgr-cluster6 src -m comment --comment "netmgr unattributed internet-out v6"
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -m comment --comment "netmgr rest in NETMGR-BEFORE_SRCNAT-2" -g NETMGR-BEFORE_SRCNAT-3
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-3 ! -i nm+ -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4" -j NETMGR-BEFORE_SRCNAT-4
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s fc00::/7 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in fc00::/7" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s ff00::/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in ff00::/8" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s fe80::/10 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in fe80::/10" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 100::/64 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 100::/64" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s ::/127 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in ::/127" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -m addrtype ! --src-type LOCAL -m comment --comment "netmgr delivered v6"
ip6tables-legacy -w -t mangle -I POSTROUTING -j NETMGR-BEFORE_SRCNAT
