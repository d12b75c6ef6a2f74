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
ipset -exist add netmgr-ranges4 10.0.0.0/14
ipset -exist add netmgr-ranges4 10.130.0.0/16
ipset create netmgr-internal6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-internal6 ::/127
ipset -exist add netmgr-internal6 100::/64
ipset -exist add netmgr-internal6 fc00::/7
ipset -exist add netmgr-internal6 fe80::/10
ipset -exist add netmgr-internal6 ff00::/8
ipset create netmgr-ranges6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-ranges6 fd00::/48
ipset -exist add netmgr-ranges6 fd00:1::/48
ipset -exist add netmgr-ranges6 fd00:2::/48
ipset -exist add netmgr-ranges6 fd00:3::/48
ipset create netmgr-sites4 hash:net family inet maxelem 65536
ipset -exist add netmgr-sites4 10.0.0.0/14
ipset -exist add netmgr-sites4 10.130.0.0/16
ipset -exist add netmgr-sites4 100.64.1.0/24
ipset -exist add netmgr-sites4 100.64.2.0/24
ipset create netmgr-sites6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-sites6 fd00::/48
ipset -exist add netmgr-sites6 fd00:1::/48
ipset -exist add netmgr-sites6 fd00:2::/48
ipset -exist add netmgr-sites6 fd00:3::/48
ipset -exist add netmgr-sites6 fd64:1::/120
ipset -exist add netmgr-sites6 fd64:2::/120
ipset create netmgr-site-spoke-a4 hash:net family inet maxelem 65536
ipset -exist add netmgr-site-spoke-a4 10.1.0.0/16
ipset -exist add netmgr-site-spoke-a4 100.64.1.0/24
ipset create netmgr-site-spoke-b4 hash:net family inet maxelem 65536
ipset -exist add netmgr-site-spoke-b4 10.2.0.0/16
ipset -exist add netmgr-site-spoke-b4 10.130.0.0/16
ipset -exist add netmgr-site-spoke-b4 100.64.2.0/24
ipset create netmgr-site-spoke-c4 hash:net family inet maxelem 65536
ipset -exist add netmgr-site-spoke-c4 10.3.0.0/16
ipset create netmgr-site-spoke-a6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-site-spoke-a6 fd00:1::/48
ipset -exist add netmgr-site-spoke-a6 fd64:1::/120
ipset create netmgr-site-spoke-b6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-site-spoke-b6 fd00:2::/48
ipset -exist add netmgr-site-spoke-b6 fd64:2::/120
ipset create netmgr-site-spoke-c6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-site-spoke-c6 fd00:3::/48
ipset create netmgr-pod-in4 hash:ip family inet maxelem 65536 counters
ipset create netmgr-pod-out4 hash:ip family inet maxelem 65536 counters
ipset create netmgr-pod-in6 hash:ip family inet6 maxelem 65536 counters
ipset create netmgr-pod-out6 hash:ip family inet6 maxelem 65536 counters
iptables-legacy -w -t raw -N NETMGR-PREROUTING
iptables-legacy -w -t raw -N NETMGR-PREROUTING-2
iptables-legacy -w -t raw -A NETMGR-PREROUTING -s 10.1.255.1/32 ! -i lo -m rpfilter --invert -m comment --comment "netmgr forged 10.1.255.1/32 unreturnable v4" -j DROP
iptables-legacy -w -t raw -A NETMGR-PREROUTING -s 127.0.0.0/8 ! -i lo -m rpfilter --invert -m comment --comment "netmgr forged 127.0.0.0/8 unreturnable v4" -j DROP
iptables-legacy -w -t raw -A NETMGR-PREROUTING -m set --match-set netmgr-sites4 src -m rpfilter --invert -m comment --comment "netmgr forged site v4" -j DROP
iptables-legacy -w -t raw -A NETMGR-PREROUTING -m set --match-set netmgr-sites4 dst -m comment --comment "netmgr NETMGR-PREROUTING-2" -j NETMGR-PREROUTING-2
iptables-legacy -w -t raw -A NETMGR-PREROUTING-2 -d 10.1.255.1/32 -m comment --comment "netmgr NETMGR-PREROUTING-2 dst in 10.1.255.1/32" -j RETURN
iptables-legacy -w -t raw -A NETMGR-PREROUTING-2 -d 127.0.0.0/8 -m comment --comment "netmgr NETMGR-PREROUTING-2 dst in 127.0.0.0/8" -j RETURN
iptables-legacy -w -t raw -A NETMGR-PREROUTING-2 -m rpfilter --invert -m comment --comment "netmgr forged to a site v4" -j DROP
iptables-legacy -w -t raw -I PREROUTING -j NETMGR-PREROUTING
ip6tables-legacy -w -t raw -N NETMGR-PREROUTING
ip6tables-legacy -w -t raw -N NETMGR-PREROUTING-2
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING -s ::1/128 ! -i lo ! -d ff00::/8 -m comment --comment "netmgr forged ::1/128 v6" -j DROP
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING -s ::1/128 ! -i lo -m rpfilter --invert -m comment --comment "netmgr forged ::1/128 unreturnable v6" -j DROP
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING -s fd00:1:0:ff::1/128 ! -i lo ! -d ff00::/8 -m comment --comment "netmgr forged fd00:1:0:ff::1/128 v6" -j DROP
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING -s fd00:1:0:ff::1/128 ! -i lo -m rpfilter --invert -m comment --comment "netmgr forged fd00:1:0:ff::1/128 unreturnable v6" -j DROP
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING -m set --match-set netmgr-sites6 src -m rpfilter --invert -m comment --comment "netmgr forged site v6" -j DROP
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING -m set --match-set netmgr-sites6 dst -m comment --comment "netmgr NETMGR-PREROUTING-2" -j NETMGR-PREROUTING-2
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-2 -d ::1/128 -m comment --comment "netmgr NETMGR-PREROUTING-2 dst in ::1/128" -j RETURN
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-2 -d fd00:1:0:ff::1/128 -m comment --comment "netmgr NETMGR-PREROUTING-2 dst in fd00:1:0:ff::1/128" -j RETURN
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-2 -m rpfilter --invert -m comment --comment "netmgr forged to a site v6" -j DROP
ip6tables-legacy -w -t raw -I PREROUTING -j NETMGR-PREROUTING
iptables-legacy -w -t mangle -I INPUT 1 ! -i lo -m set ! --match-set netmgr-internal4 src -m comment --comment "iptables-exporter openai traffic=internet-in"
ip6tables-legacy -w -t mangle -I INPUT 1 ! -i lo -m set ! --match-set netmgr-internal6 src -m comment --comment "iptables-exporter openai traffic=internet-in"
iptables-legacy -w -t mangle -I FORWARD 1 ! -o nm+ -m set ! --match-set netmgr-internal4 dst -m comment --comment "iptables-exporter openai traffic=internet-out"
iptables-legacy -w -t mangle -I FORWARD 2 ! -i nm+ -m set ! --match-set netmgr-internal4 src -m comment --comment "iptables-exporter openai traffic=internet-in"
iptables-legacy -w -t mangle -N NETMGR-FORWARD
iptables-legacy -w -t mangle -N NETMGR-FORWARD-2
iptables-legacy -w -t mangle -N NETMGR-FORWARD-3
iptables-legacy -w -t mangle -N NETMGR-FORWARD-4
iptables-legacy -w -t mangle -N NETMGR-FORWARD-5
iptables-legacy -w -t mangle -N NETMGR-FORWARD-6
iptables-legacy -w -t mangle -N NETMGR-FORWARD-7
iptables-legacy -w -t mangle -A NETMGR-FORWARD ! -o nm+ -m comment --comment "netmgr NETMGR-FORWARD-2" -g NETMGR-FORWARD-2
iptables-legacy -w -t mangle -A NETMGR-FORWARD -m comment --comment "netmgr rest of NETMGR-FORWARD-2" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d 224.0.0.0/3 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in 224.0.0.0/3" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d 0.0.0.0/8 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in 0.0.0.0/8" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d 10.0.0.0/8 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in 10.0.0.0/8" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d 127.0.0.0/8 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in 127.0.0.0/8" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d 100.64.0.0/10 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in 100.64.0.0/10" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d 172.16.0.0/12 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in 172.16.0.0/12" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d 198.18.0.0/15 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in 198.18.0.0/15" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d 169.254.0.0/16 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in 169.254.0.0/16" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d 192.168.0.0/16 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in 192.168.0.0/16" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d 168.63.129.16/32 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in 168.63.129.16/32" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m comment --comment "netmgr to the internet v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m comment --comment "netmgr rest in NETMGR-FORWARD-2" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-3 -m comment --comment "netmgr NETMGR-FORWARD-4" -g NETMGR-FORWARD-4
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -s 10.1.0.0/16 -m comment --comment "netmgr NETMGR-FORWARD-4 src in 10.1.0.0/16" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -s 10.2.0.0/15 -m comment --comment "netmgr NETMGR-FORWARD-4 src in 10.2.0.0/15" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -s 10.130.0.0/16 -m comment --comment "netmgr NETMGR-FORWARD-4 src in 10.130.0.0/16" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -s 100.64.1.0/24 -m comment --comment "netmgr NETMGR-FORWARD-4 src in 100.64.1.0/24" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -s 100.64.2.0/24 -m comment --comment "netmgr NETMGR-FORWARD-4 src in 100.64.2.0/24" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -m comment --comment "netmgr isolation forward passes hub src v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -m comment --comment "netmgr rest in NETMGR-FORWARD-4" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-5 -m comment --comment "netmgr NETMGR-FORWARD-6" -g NETMGR-FORWARD-6
iptables-legacy -w -t mangle -A NETMGR-FORWARD-6 -d 10.1.0.0/16 -m comment --comment "netmgr NETMGR-FORWARD-6 dst in 10.1.0.0/16" -g NETMGR-FORWARD-7
iptables-legacy -w -t mangle -A NETMGR-FORWARD-6 -d 10.2.0.0/15 -m comment --comment "netmgr NETMGR-FORWARD-6 dst in 10.2.0.0/15" -g NETMGR-FORWARD-7
iptables-legacy -w -t mangle -A NETMGR-FORWARD-6 -d 10.130.0.0/16 -m comment --comment "netmgr NETMGR-FORWARD-6 dst in 10.130.0.0/16" -g NETMGR-FORWARD-7
iptables-legacy -w -t mangle -A NETMGR-FORWARD-6 -d 100.64.1.0/24 -m comment --comment "netmgr NETMGR-FORWARD-6 dst in 100.64.1.0/24" -g NETMGR-FORWARD-7
iptables-legacy -w -t mangle -A NETMGR-FORWARD-6 -d 100.64.2.0/24 -m comment --comment "netmgr NETMGR-FORWARD-6 dst in 100.64.2.0/24" -g NETMGR-FORWARD-7
iptables-legacy -w -t mangle -A NETMGR-FORWARD-6 -m comment --comment "netmgr isolation forward passes hub dst v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-6 -m comment --comment "netmgr rest in NETMGR-FORWARD-6" -g NETMGR-FORWARD-7
iptables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-a4 src -m set --match-set netmgr-site-spoke-a4 dst -m comment --comment "netmgr isolation forward passes within spoke-a v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-b4 src -m set --match-set netmgr-site-spoke-b4 dst -m comment --comment "netmgr isolation forward passes within spoke-b v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-c4 src -m set --match-set netmgr-site-spoke-c4 dst -m comment --comment "netmgr isolation forward passes within spoke-c v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-a4 src -m set --match-set netmgr-site-spoke-b4 dst -m comment --comment "netmgr isolation forward spoke-a spoke-b v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-a4 src -m set --match-set netmgr-site-spoke-c4 dst -m comment --comment "netmgr isolation forward spoke-a spoke-c v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-b4 src -m set --match-set netmgr-site-spoke-a4 dst -m comment --comment "netmgr isolation forward spoke-b spoke-a v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-b4 src -m set --match-set netmgr-site-spoke-c4 dst -m comment --comment "netmgr isolation forward spoke-b spoke-c v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-c4 src -m set --match-set netmgr-site-spoke-a4 dst -m comment --comment "netmgr isolation forward spoke-c spoke-a v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-c4 src -m set --match-set netmgr-site-spoke-b4 dst -m comment --comment "netmgr isolation forward spoke-c spoke-b v4" -j DROP
iptables-legacy -w -t mangle -I FORWARD -j NETMGR-FORWARD
ip6tables-legacy -w -t mangle -I FORWARD 1 ! -o nm+ -m set ! --match-set netmgr-internal6 dst -m comment --comment "iptables-exporter openai traffic=internet-out"
ip6tables-legacy -w -t mangle -I FORWARD 2 ! -i nm+ -m set ! --match-set netmgr-internal6 src -m comment --comment "iptables-exporter openai traffic=internet-in"
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD-2
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD-4
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD-6
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD-7
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD ! -o nm+ -m comment --comment "netmgr NETMGR-FORWARD-2" -g NETMGR-FORWARD-2
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD -m comment --comment "netmgr rest of NETMGR-FORWARD-2" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d fc00::/7 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in fc00::/7" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d ff00::/8 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in ff00::/8" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d fe80::/10 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in fe80::/10" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d 100::/64 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in 100::/64" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -d ::/127 -m comment --comment "netmgr NETMGR-FORWARD-2 dst in ::/127" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m comment --comment "netmgr to the internet v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m comment --comment "netmgr rest in NETMGR-FORWARD-2" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-3 -m comment --comment "netmgr NETMGR-FORWARD-4" -g NETMGR-FORWARD-4
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -s fd00:1::/48 -m comment --comment "netmgr NETMGR-FORWARD-4 src in fd00:1::/48" -g NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -s fd00:2::/48 -m comment --comment "netmgr NETMGR-FORWARD-4 src in fd00:2::/48" -g NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -s fd00:3::/48 -m comment --comment "netmgr NETMGR-FORWARD-4 src in fd00:3::/48" -g NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -s fd64:1::/120 -m comment --comment "netmgr NETMGR-FORWARD-4 src in fd64:1::/120" -g NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -s fd64:2::/120 -m comment --comment "netmgr NETMGR-FORWARD-4 src in fd64:2::/120" -g NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -m comment --comment "netmgr isolation forward passes hub src v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -m comment --comment "netmgr rest in NETMGR-FORWARD-4" -g NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-5 -m comment --comment "netmgr NETMGR-FORWARD-6" -g NETMGR-FORWARD-6
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-6 -d fd00:1::/48 -m comment --comment "netmgr NETMGR-FORWARD-6 dst in fd00:1::/48" -g NETMGR-FORWARD-7
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-6 -d fd00:2::/48 -m comment --comment "netmgr NETMGR-FORWARD-6 dst in fd00:2::/48" -g NETMGR-FORWARD-7
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-6 -d fd00:3::/48 -m comment --comment "netmgr NETMGR-FORWARD-6 dst in fd00:3::/48" -g NETMGR-FORWARD-7
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-6 -d fd64:1::/120 -m comment --comment "netmgr NETMGR-FORWARD-6 dst in fd64:1::/120" -g NETMGR-FORWARD-7
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-6 -d fd64:2::/120 -m comment --comment "netmgr NETMGR-FORWARD-6 dst in fd64:2::/120" -g NETMGR-FORWARD-7
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-6 -m comment --comment "netmgr isolation forward passes hub dst v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-6 -m comment --comment "netmgr rest in NETMGR-FORWARD-6" -g NETMGR-FORWARD-7
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-a6 src -m set --match-set netmgr-site-spoke-a6 dst -m comment --comment "netmgr isolation forward passes within spoke-a v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-b6 src -m set --match-set netmgr-site-spoke-b6 dst -m comment --comment "netmgr isolation forward passes within spoke-b v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-c6 src -m set --match-set netmgr-site-spoke-c6 dst -m comment --comment "netmgr isolation forward passes within spoke-c v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-a6 src -m set --match-set netmgr-site-spoke-b6 dst -m comment --comment "netmgr isolation forward spoke-a spoke-b v6" -j DROP
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-a6 src -m set --match-set netmgr-site-spoke-c6 dst -m comment --comment "netmgr isolation forward spoke-a spoke-c v6" -j DROP
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-b6 src -m set --match-set netmgr-site-spoke-a6 dst -m comment --comment "netmgr isolation forward spoke-b spoke-a v6" -j DROP
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-b6 src -m set --match-set netmgr-site-spoke-c6 dst -m comment --comment "netmgr isolation forward spoke-b spoke-c v6" -j DROP
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-c6 src -m set --match-set netmgr-site-spoke-a6 dst -m comment --comment "netmgr isolation forward spoke-c spoke-a v6" -j DROP
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-7 -m set --match-set netmgr-site-spoke-c6 src -m set --match-set netmgr-site-spoke-b6 dst -m comment --comment "netmgr isolation forward spoke-c spoke-b v6" -j DROP
ip6tables-legacy -w -t mangle -I FORWARD -j NETMGR-FORWARD
iptables-legacy -w -t mangle -I OUTPUT 1 ! -o lo -m set ! --match-set netmgr-internal4 dst -m comment --comment "iptables-exporter openai traffic=internet-out"
ip6tables-legacy -w -t mangle -I OUTPUT 1 ! -o lo -m set ! --match-set netmgr-internal6 dst -m comment --comment "iptables-exporter openai traffic=internet-out"
iptables-legacy -w -t nat -N NETMGR-POSTROUTING
iptables-legacy -w -t nat -A NETMGR-POSTROUTING -m set --match-set netmgr-ranges4 src -m set ! --match-set netmgr-internal4 dst -m comment --comment "netmgr masquerade v4" -j MASQUERADE
iptables-legacy -w -t nat -A POSTROUTING -j NETMGR-POSTROUTING
ip6tables-legacy -w -t nat -N NETMGR-POSTROUTING
ip6tables-legacy -w -t nat -A NETMGR-POSTROUTING -m set --match-set netmgr-ranges6 src -m set ! --match-set netmgr-internal6 dst -m comment --comment "netmgr masquerade v6" -j MASQUERADE
ip6tables-legacy -w -t nat -A POSTROUTING -j NETMGR-POSTROUTING
