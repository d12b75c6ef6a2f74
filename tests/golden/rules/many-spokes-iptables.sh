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
ipset -exist add netmgr-ranges4 10.1.0.0/24
ipset create netmgr-internal6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-internal6 ::/127
ipset -exist add netmgr-internal6 100::/64
ipset -exist add netmgr-internal6 fc00::/7
ipset -exist add netmgr-internal6 fe80::/10
ipset -exist add netmgr-internal6 ff00::/8
ipset create netmgr-ranges6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-ranges6 fd00:1::/112
ipset create netmgr-link-local6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-link-local6 ::/128
ipset -exist add netmgr-link-local6 fe80::/10
ipset create netmgr-foreign4 hash:net family inet maxelem 65536
ipset -exist add netmgr-foreign4 10.65.0.0/16
ipset -exist add netmgr-foreign4 10.67.0.0/16
ipset -exist add netmgr-foreign4 10.69.0.0/16
ipset -exist add netmgr-foreign4 10.71.0.0/16
ipset -exist add netmgr-foreign4 10.73.0.0/16
ipset -exist add netmgr-foreign4 10.75.0.0/16
ipset -exist add netmgr-foreign4 10.77.0.0/16
ipset -exist add netmgr-foreign4 10.79.0.0/16
ipset -exist add netmgr-foreign4 10.81.0.0/16
ipset -exist add netmgr-foreign4 10.129.0.0/16
ipset -exist add netmgr-foreign4 10.131.0.0/16
ipset -exist add netmgr-foreign4 10.133.0.0/16
ipset -exist add netmgr-foreign4 10.135.0.0/16
ipset -exist add netmgr-foreign4 10.137.0.0/16
ipset -exist add netmgr-foreign4 10.139.0.0/16
ipset -exist add netmgr-foreign4 10.141.0.0/16
ipset -exist add netmgr-foreign4 10.143.0.0/16
ipset -exist add netmgr-foreign4 10.145.0.0/16
ipset create netmgr-site-spoke-a4 hash:net family inet maxelem 65536
ipset -exist add netmgr-site-spoke-a4 10.1.0.0/16
ipset -exist add netmgr-site-spoke-a4 10.3.0.0/16
ipset -exist add netmgr-site-spoke-a4 10.5.0.0/16
ipset -exist add netmgr-site-spoke-a4 10.7.0.0/16
ipset -exist add netmgr-site-spoke-a4 10.9.0.0/16
ipset -exist add netmgr-site-spoke-a4 10.11.0.0/16
ipset -exist add netmgr-site-spoke-a4 10.13.0.0/16
ipset -exist add netmgr-site-spoke-a4 10.15.0.0/16
ipset -exist add netmgr-site-spoke-a4 10.17.0.0/16
ipset create netmgr-site-spoke-b4 hash:net family inet maxelem 65536
ipset -exist add netmgr-site-spoke-b4 10.65.0.0/16
ipset -exist add netmgr-site-spoke-b4 10.67.0.0/16
ipset -exist add netmgr-site-spoke-b4 10.69.0.0/16
ipset -exist add netmgr-site-spoke-b4 10.71.0.0/16
ipset -exist add netmgr-site-spoke-b4 10.73.0.0/16
ipset -exist add netmgr-site-spoke-b4 10.75.0.0/16
ipset -exist add netmgr-site-spoke-b4 10.77.0.0/16
ipset -exist add netmgr-site-spoke-b4 10.79.0.0/16
ipset -exist add netmgr-site-spoke-b4 10.81.0.0/16
ipset create netmgr-site-spoke-c4 hash:net family inet maxelem 65536
ipset -exist add netmgr-site-spoke-c4 10.129.0.0/16
ipset -exist add netmgr-site-spoke-c4 10.131.0.0/16
ipset -exist add netmgr-site-spoke-c4 10.133.0.0/16
ipset -exist add netmgr-site-spoke-c4 10.135.0.0/16
ipset -exist add netmgr-site-spoke-c4 10.137.0.0/16
ipset -exist add netmgr-site-spoke-c4 10.139.0.0/16
ipset -exist add netmgr-site-spoke-c4 10.141.0.0/16
ipset -exist add netmgr-site-spoke-c4 10.143.0.0/16
ipset -exist add netmgr-site-spoke-c4 10.145.0.0/16
ipset create netmgr-foreign6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-foreign6 fd00:41::/32
ipset -exist add netmgr-foreign6 fd00:43::/32
ipset -exist add netmgr-foreign6 fd00:45::/32
ipset -exist add netmgr-foreign6 fd00:47::/32
ipset -exist add netmgr-foreign6 fd00:49::/32
ipset -exist add netmgr-foreign6 fd00:4b::/32
ipset -exist add netmgr-foreign6 fd00:4d::/32
ipset -exist add netmgr-foreign6 fd00:4f::/32
ipset -exist add netmgr-foreign6 fd00:51::/32
ipset -exist add netmgr-foreign6 fd00:81::/32
ipset -exist add netmgr-foreign6 fd00:83::/32
ipset -exist add netmgr-foreign6 fd00:85::/32
ipset -exist add netmgr-foreign6 fd00:87::/32
ipset -exist add netmgr-foreign6 fd00:89::/32
ipset -exist add netmgr-foreign6 fd00:8b::/32
ipset -exist add netmgr-foreign6 fd00:8d::/32
ipset -exist add netmgr-foreign6 fd00:8f::/32
ipset -exist add netmgr-foreign6 fd00:91::/32
ipset create netmgr-site-spoke-a6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-site-spoke-a6 fd00:1::/32
ipset -exist add netmgr-site-spoke-a6 fd00:3::/32
ipset -exist add netmgr-site-spoke-a6 fd00:5::/32
ipset -exist add netmgr-site-spoke-a6 fd00:7::/32
ipset -exist add netmgr-site-spoke-a6 fd00:9::/32
ipset -exist add netmgr-site-spoke-a6 fd00:b::/32
ipset -exist add netmgr-site-spoke-a6 fd00:d::/32
ipset -exist add netmgr-site-spoke-a6 fd00:f::/32
ipset -exist add netmgr-site-spoke-a6 fd00:11::/32
ipset create netmgr-site-spoke-b6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-site-spoke-b6 fd00:41::/32
ipset -exist add netmgr-site-spoke-b6 fd00:43::/32
ipset -exist add netmgr-site-spoke-b6 fd00:45::/32
ipset -exist add netmgr-site-spoke-b6 fd00:47::/32
ipset -exist add netmgr-site-spoke-b6 fd00:49::/32
ipset -exist add netmgr-site-spoke-b6 fd00:4b::/32
ipset -exist add netmgr-site-spoke-b6 fd00:4d::/32
ipset -exist add netmgr-site-spoke-b6 fd00:4f::/32
ipset -exist add netmgr-site-spoke-b6 fd00:51::/32
ipset create netmgr-site-spoke-c6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-site-spoke-c6 fd00:81::/32
ipset -exist add netmgr-site-spoke-c6 fd00:83::/32
ipset -exist add netmgr-site-spoke-c6 fd00:85::/32
ipset -exist add netmgr-site-spoke-c6 fd00:87::/32
ipset -exist add netmgr-site-spoke-c6 fd00:89::/32
ipset -exist add netmgr-site-spoke-c6 fd00:8b::/32
ipset -exist add netmgr-site-spoke-c6 fd00:8d::/32
ipset -exist add netmgr-site-spoke-c6 fd00:8f::/32
ipset -exist add netmgr-site-spoke-c6 fd00:91::/32
ipset create netmgr-link-scope6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-link-scope6 fe80::/10
ipset -exist add netmgr-link-scope6 ff02::/16
ipset create netmgr-classes4 hash:net family inet maxelem 65536
ipset -exist add netmgr-classes4 10.2.0.0/24
ipset -exist add netmgr-classes4 10.2.2.0/24
ipset -exist add netmgr-classes4 10.2.4.0/24
ipset -exist add netmgr-classes4 10.2.6.0/24
ipset -exist add netmgr-classes4 10.2.8.0/24
ipset -exist add netmgr-classes4 10.2.10.0/24
ipset -exist add netmgr-classes4 10.2.12.0/24
ipset -exist add netmgr-classes4 10.2.14.0/24
ipset -exist add netmgr-classes4 10.2.16.0/24
ipset -exist add netmgr-classes4 10.65.0.0/16
ipset -exist add netmgr-classes4 10.67.0.0/16
ipset -exist add netmgr-classes4 10.69.0.0/16
ipset -exist add netmgr-classes4 10.71.0.0/16
ipset -exist add netmgr-classes4 10.73.0.0/16
ipset -exist add netmgr-classes4 10.75.0.0/16
ipset -exist add netmgr-classes4 10.77.0.0/16
ipset -exist add netmgr-classes4 10.79.0.0/16
ipset -exist add netmgr-classes4 10.81.0.0/16
ipset -exist add netmgr-classes4 10.129.0.0/16
ipset -exist add netmgr-classes4 10.131.0.0/16
ipset -exist add netmgr-classes4 10.133.0.0/16
ipset -exist add netmgr-classes4 10.135.0.0/16
ipset -exist add netmgr-classes4 10.137.0.0/16
ipset -exist add netmgr-classes4 10.139.0.0/16
ipset -exist add netmgr-classes4 10.141.0.0/16
ipset -exist add netmgr-classes4 10.143.0.0/16
ipset -exist add netmgr-classes4 10.145.0.0/16
ipset create netmgr-class-others4 hash:net family inet maxelem 65536
ipset -exist add netmgr-class-others4 10.2.0.0/24
ipset -exist add netmgr-class-others4 10.2.2.0/24
ipset -exist add netmgr-class-others4 10.2.4.0/24
ipset -exist add netmgr-class-others4 10.2.6.0/24
ipset -exist add netmgr-class-others4 10.2.8.0/24
ipset -exist add netmgr-class-others4 10.2.10.0/24
ipset -exist add netmgr-class-others4 10.2.12.0/24
ipset -exist add netmgr-class-others4 10.2.14.0/24
ipset -exist add netmgr-class-others4 10.2.16.0/24
ipset create netmgr-classes6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-classes6 fd00:2::/48
ipset -exist add netmgr-classes6 fd00:2:2::/48
ipset -exist add netmgr-classes6 fd00:2:4::/48
ipset -exist add netmgr-classes6 fd00:2:6::/48
ipset -exist add netmgr-classes6 fd00:2:8::/48
ipset -exist add netmgr-classes6 fd00:2:a::/48
ipset -exist add netmgr-classes6 fd00:2:c::/48
ipset -exist add netmgr-classes6 fd00:2:e::/48
ipset -exist add netmgr-classes6 fd00:2:10::/48
ipset -exist add netmgr-classes6 fd00:41::/32
ipset -exist add netmgr-classes6 fd00:43::/32
ipset -exist add netmgr-classes6 fd00:45::/32
ipset -exist add netmgr-classes6 fd00:47::/32
ipset -exist add netmgr-classes6 fd00:49::/32
ipset -exist add netmgr-classes6 fd00:4b::/32
ipset -exist add netmgr-classes6 fd00:4d::/32
ipset -exist add netmgr-classes6 fd00:4f::/32
ipset -exist add netmgr-classes6 fd00:51::/32
ipset -exist add netmgr-classes6 fd00:81::/32
ipset -exist add netmgr-classes6 fd00:83::/32
ipset -exist add netmgr-classes6 fd00:85::/32
ipset -exist add netmgr-classes6 fd00:87::/32
ipset -exist add netmgr-classes6 fd00:89::/32
ipset -exist add netmgr-classes6 fd00:8b::/32
ipset -exist add netmgr-classes6 fd00:8d::/32
ipset -exist add netmgr-classes6 fd00:8f::/32
ipset -exist add netmgr-classes6 fd00:91::/32
ipset create netmgr-class-others6 hash:net family inet6 maxelem 65536
ipset -exist add netmgr-class-others6 fd00:2::/48
ipset -exist add netmgr-class-others6 fd00:2:2::/48
ipset -exist add netmgr-class-others6 fd00:2:4::/48
ipset -exist add netmgr-class-others6 fd00:2:6::/48
ipset -exist add netmgr-class-others6 fd00:2:8::/48
ipset -exist add netmgr-class-others6 fd00:2:a::/48
ipset -exist add netmgr-class-others6 fd00:2:c::/48
ipset -exist add netmgr-class-others6 fd00:2:e::/48
ipset -exist add netmgr-class-others6 fd00:2:10::/48
ipset create netmgr-pod-in4 hash:ip family inet maxelem 65536 counters
ipset -exist add netmgr-pod-in4 10.1.0.5
ipset -exist add netmgr-pod-in4 10.1.0.6
ipset create netmgr-pod-out4 hash:ip family inet maxelem 65536 counters
ipset -exist add netmgr-pod-out4 10.1.0.5
ipset -exist add netmgr-pod-out4 10.1.0.6
ipset create netmgr-pod-others-in4 hash:ip family inet maxelem 65536 counters
ipset -exist add netmgr-pod-others-in4 10.1.0.5
ipset -exist add netmgr-pod-others-in4 10.1.0.6
ipset create netmgr-pod-others-out4 hash:ip family inet maxelem 65536 counters
ipset -exist add netmgr-pod-others-out4 10.1.0.5
ipset -exist add netmgr-pod-others-out4 10.1.0.6
ipset create netmgr-pod-internal-in4 hash:ip family inet maxelem 65536 counters
ipset -exist add netmgr-pod-internal-in4 10.1.0.5
ipset -exist add netmgr-pod-internal-in4 10.1.0.6
ipset create netmgr-pod-internal-out4 hash:ip family inet maxelem 65536 counters
ipset -exist add netmgr-pod-internal-out4 10.1.0.5
ipset -exist add netmgr-pod-internal-out4 10.1.0.6
ipset create netmgr-pod-protected-out4 hash:ip family inet maxelem 65536 counters
ipset -exist add netmgr-pod-protected-out4 10.1.0.5
ipset -exist add netmgr-pod-protected-out4 10.1.0.6
ipset create netmgr-pod-in6 hash:ip family inet6 maxelem 65536 counters
ipset -exist add netmgr-pod-in6 2001:db8:1::5
ipset create netmgr-pod-out6 hash:ip family inet6 maxelem 65536 counters
ipset -exist add netmgr-pod-out6 2001:db8:1::5
ipset create netmgr-pod-others-in6 hash:ip family inet6 maxelem 65536 counters
ipset -exist add netmgr-pod-others-in6 2001:db8:1::5
ipset create netmgr-pod-others-out6 hash:ip family inet6 maxelem 65536 counters
ipset -exist add netmgr-pod-others-out6 2001:db8:1::5
ipset create netmgr-pod-internal-in6 hash:ip family inet6 maxelem 65536 counters
ipset -exist add netmgr-pod-internal-in6 2001:db8:1::5
ipset create netmgr-pod-internal-out6 hash:ip family inet6 maxelem 65536 counters
ipset -exist add netmgr-pod-internal-out6 2001:db8:1::5
ipset create netmgr-pod-protected-out6 hash:ip family inet6 maxelem 65536 counters
ipset -exist add netmgr-pod-protected-out6 2001:db8:1::5
iptables-legacy -w -t raw -N NETMGR-PREROUTING
iptables-legacy -w -t raw -N NETMGR-PREROUTING-2
iptables-legacy -w -t raw -N NETMGR-PREROUTING-3
iptables-legacy -w -t raw -A NETMGR-PREROUTING ! -i nm+ -m comment --comment "netmgr NETMGR-PREROUTING-2" -g NETMGR-PREROUTING-2
iptables-legacy -w -t raw -A NETMGR-PREROUTING -m comment --comment "netmgr rest of NETMGR-PREROUTING-2" -g NETMGR-PREROUTING-3
iptables-legacy -w -t raw -A NETMGR-PREROUTING-2 -s 10.1.0.0/24 -m comment --comment "netmgr NETMGR-PREROUTING-2 src in 10.1.0.0/24" -g NETMGR-PREROUTING-3
iptables-legacy -w -t raw -A NETMGR-PREROUTING-2 -s 10.1.255.1/32 -m comment --comment "netmgr NETMGR-PREROUTING-2 src in 10.1.255.1/32" -g NETMGR-PREROUTING-3
iptables-legacy -w -t raw -A NETMGR-PREROUTING-2 -s 127.0.0.0/8 -m comment --comment "netmgr NETMGR-PREROUTING-2 src in 127.0.0.0/8" -g NETMGR-PREROUTING-3
iptables-legacy -w -t raw -A NETMGR-PREROUTING-2 -m comment --comment "netmgr elsewhere v4" -j RETURN
iptables-legacy -w -t raw -A NETMGR-PREROUTING-2 -m comment --comment "netmgr rest in NETMGR-PREROUTING-2" -g NETMGR-PREROUTING-3
iptables-legacy -w -t raw -A NETMGR-PREROUTING-3 -i nm+ -m rpfilter -m comment --comment "netmgr honest pods v4" -j RETURN
iptables-legacy -w -t raw -A NETMGR-PREROUTING-3 -i nm+ -m comment --comment "netmgr anti-spoofing v4" -j DROP
iptables-legacy -w -t raw -A NETMGR-PREROUTING-3 ! -i lo -m set --match-set netmgr-ranges4 src -m comment --comment "netmgr forged v4" -j DROP
iptables-legacy -w -t raw -A NETMGR-PREROUTING-3 ! -i lo -m rpfilter --invert -m comment --comment "netmgr forged unreturnable v4" -j DROP
iptables-legacy -w -t raw -I PREROUTING -j NETMGR-PREROUTING
ip6tables-legacy -w -t raw -N NETMGR-PREROUTING
ip6tables-legacy -w -t raw -N NETMGR-PREROUTING-2
ip6tables-legacy -w -t raw -N NETMGR-PREROUTING-3
ip6tables-legacy -w -t raw -N NETMGR-PREROUTING-4
ip6tables-legacy -w -t raw -N NETMGR-PREROUTING-5
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING ! -i nm+ -m comment --comment "netmgr NETMGR-PREROUTING-2" -g NETMGR-PREROUTING-2
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING -m comment --comment "netmgr rest of NETMGR-PREROUTING-2" -g NETMGR-PREROUTING-3
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-2 -s ::1/128 -m comment --comment "netmgr NETMGR-PREROUTING-2 src in ::1/128" -g NETMGR-PREROUTING-3
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-2 -s fd00:1::/112 -m comment --comment "netmgr NETMGR-PREROUTING-2 src in fd00:1::/112" -g NETMGR-PREROUTING-3
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-2 -s fd00:1:0:ff::1/128 -m comment --comment "netmgr NETMGR-PREROUTING-2 src in fd00:1:0:ff::1/128" -g NETMGR-PREROUTING-3
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-2 -m comment --comment "netmgr elsewhere v6" -j RETURN
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-2 -m comment --comment "netmgr rest in NETMGR-PREROUTING-2" -g NETMGR-PREROUTING-3
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-3 -i nm+ -m comment --comment "netmgr NETMGR-PREROUTING-4" -g NETMGR-PREROUTING-4
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-3 -m comment --comment "netmgr rest of NETMGR-PREROUTING-4" -g NETMGR-PREROUTING-5
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-4 -s ::/128 -m comment --comment "netmgr NETMGR-PREROUTING-4 src in ::/128" -g NETMGR-PREROUTING-5
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-4 -s fe80::/10 -m comment --comment "netmgr NETMGR-PREROUTING-4 src in fe80::/10" -g NETMGR-PREROUTING-5
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-4 -m rpfilter -m comment --comment "netmgr honest pods v6" -j RETURN
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-4 -m comment --comment "netmgr rest in NETMGR-PREROUTING-4" -g NETMGR-PREROUTING-5
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-5 -i nm+ -p ipv6-icmp -m icmp6 --icmpv6-type 134 -m comment --comment "netmgr router v6" -j DROP
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-5 -i nm+ -p ipv6-icmp -m icmp6 --icmpv6-type 137 -m comment --comment "netmgr redirect v6" -j DROP
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-5 -i nm+ -m set --match-set netmgr-link-local6 src -m comment --comment "netmgr link_local v6" -j DROP
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-5 -i nm+ -m comment --comment "netmgr anti-spoofing v6" -j DROP
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-5 ! -i lo ! -d ff00::/8 -m comment --comment "netmgr forged v6" -j DROP
ip6tables-legacy -w -t raw -A NETMGR-PREROUTING-5 ! -i lo -m rpfilter --invert -m comment --comment "netmgr forged unreturnable v6" -j DROP
ip6tables-legacy -w -t raw -I PREROUTING -j NETMGR-PREROUTING
iptables-legacy -w -t mangle -I INPUT 1 ! -i lo -m set ! --match-set netmgr-internal4 src -m comment --comment "iptables-exporter netmgr traffic=internet-in"
iptables-legacy -w -t mangle -N NETMGR-INPUT
iptables-legacy -w -t mangle -A NETMGR-INPUT -i nm+ -p icmp -m icmp --icmp-type 5 -m comment --comment "netmgr redirect v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-INPUT -i nm+ -p udp -m udp --dport 68 -m comment --comment "netmgr dhcp v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-INPUT -m set ! --match-set netmgr-foreign4 src -m comment --comment "netmgr isolation input passes own v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-INPUT -m set --match-set netmgr-site-spoke-b4 src -m comment --comment "netmgr isolation input spoke-b spoke-a v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-INPUT -m set --match-set netmgr-site-spoke-c4 src -m comment --comment "netmgr isolation input spoke-c spoke-a v4" -j DROP
iptables-legacy -w -t mangle -I INPUT -j NETMGR-INPUT
ip6tables-legacy -w -t mangle -I INPUT 1 ! -i lo -m set ! --match-set netmgr-internal6 src -m comment --comment "iptables-exporter netmgr traffic=internet-in"
ip6tables-legacy -w -t mangle -N NETMGR-INPUT
ip6tables-legacy -w -t mangle -A NETMGR-INPUT -i nm+ -p udp -m udp --dport 546 -m comment --comment "netmgr dhcp v6" -j DROP
ip6tables-legacy -w -t mangle -A NETMGR-INPUT -m set ! --match-set netmgr-foreign6 src -m comment --comment "netmgr isolation input passes own v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-INPUT -m set --match-set netmgr-link-scope6 dst -m comment --comment "netmgr isolation input passes neighbour discovery v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-INPUT -m set --match-set netmgr-site-spoke-b6 src -m comment --comment "netmgr isolation input spoke-b spoke-a v6" -j DROP
ip6tables-legacy -w -t mangle -A NETMGR-INPUT -m set --match-set netmgr-site-spoke-c6 src -m comment --comment "netmgr isolation input spoke-c spoke-a v6" -j DROP
ip6tables-legacy -w -t mangle -I INPUT -j NETMGR-INPUT
iptables-legacy -w -t mangle -I FORWARD 1 ! -o nm+ -m set ! --match-set netmgr-internal4 dst -m comment --comment "iptables-exporter netmgr traffic=internet-out"
iptables-legacy -w -t mangle -I FORWARD 2 ! -i nm+ -m set ! --match-set netmgr-internal4 src -m comment --comment "iptables-exporter netmgr traffic=internet-in"
iptables-legacy -w -t mangle -N NETMGR-FORWARD
iptables-legacy -w -t mangle -N NETMGR-FORWARD-2
iptables-legacy -w -t mangle -N NETMGR-FORWARD-3
iptables-legacy -w -t mangle -N NETMGR-FORWARD-4
iptables-legacy -w -t mangle -N NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD ! -i nm+ -m comment --comment "netmgr NETMGR-FORWARD-2" -g NETMGR-FORWARD-2
iptables-legacy -w -t mangle -A NETMGR-FORWARD -m comment --comment "netmgr rest of NETMGR-FORWARD-2" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 10.0.0.0/8 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 10.0.0.0/8" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 224.0.0.0/3 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 224.0.0.0/3" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 0.0.0.0/8 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 0.0.0.0/8" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 127.0.0.0/8 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 127.0.0.0/8" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 100.64.0.0/10 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 100.64.0.0/10" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 172.16.0.0/12 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 172.16.0.0/12" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 198.18.0.0/15 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 198.18.0.0/15" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 169.254.0.0/16 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 169.254.0.0/16" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 192.168.0.0/16 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 192.168.0.0/16" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 168.63.129.16/32 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 168.63.129.16/32" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m comment --comment "netmgr arrived v4"
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m set --match-set netmgr-pod-in4 dst -m comment --comment "netmgr pod internet-in v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m comment --comment "netmgr unattributed internet-in v4"
iptables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m comment --comment "netmgr rest in NETMGR-FORWARD-2" -g NETMGR-FORWARD-3
iptables-legacy -w -t mangle -A NETMGR-FORWARD-3 -d 169.254.169.254/32 -i nm+ -m conntrack ! --ctreplsrcport 53 --ctdir ORIGINAL -m set --match-set netmgr-pod-protected-out4 src -m comment --comment "netmgr protected 169.254.169.254/32 v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-FORWARD-3 -d 168.63.129.16/32 -i nm+ -m conntrack ! --ctreplsrcport 53 --ctdir ORIGINAL -m set --match-set netmgr-pod-protected-out4 src -m comment --comment "netmgr protected 168.63.129.16/32 v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-FORWARD-3 -o nm+ -m set --match-set netmgr-class-others4 src -m set --match-set netmgr-pod-others-in4 dst -m comment --comment "netmgr class others in v4"
iptables-legacy -w -t mangle -A NETMGR-FORWARD-3 -o nm+ -m set ! --match-set netmgr-classes4 src -m set --match-set netmgr-pod-internal-in4 dst -m comment --comment "netmgr class internal in v4"
iptables-legacy -w -t mangle -A NETMGR-FORWARD-3 ! -o nm+ -m comment --comment "netmgr NETMGR-FORWARD-4" -g NETMGR-FORWARD-4
iptables-legacy -w -t mangle -A NETMGR-FORWARD-3 -m comment --comment "netmgr rest of NETMGR-FORWARD-4" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d 10.0.0.0/8 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in 10.0.0.0/8" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d 224.0.0.0/3 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in 224.0.0.0/3" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d 0.0.0.0/8 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in 0.0.0.0/8" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d 127.0.0.0/8 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in 127.0.0.0/8" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d 100.64.0.0/10 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in 100.64.0.0/10" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d 172.16.0.0/12 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in 172.16.0.0/12" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d 198.18.0.0/15 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in 198.18.0.0/15" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d 169.254.0.0/16 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in 169.254.0.0/16" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d 192.168.0.0/16 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in 192.168.0.0/16" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d 168.63.129.16/32 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in 168.63.129.16/32" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -m comment --comment "netmgr to the internet v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-4 -m comment --comment "netmgr rest in NETMGR-FORWARD-4" -g NETMGR-FORWARD-5
iptables-legacy -w -t mangle -A NETMGR-FORWARD-5 -m set ! --match-set netmgr-foreign4 src -m set ! --match-set netmgr-foreign4 dst -m comment --comment "netmgr isolation forward passes own v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-FORWARD-5 -m set --match-set netmgr-site-spoke-a4 src -m set --match-set netmgr-site-spoke-b4 dst -m comment --comment "netmgr isolation forward spoke-a spoke-b v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-FORWARD-5 -m set --match-set netmgr-site-spoke-a4 src -m set --match-set netmgr-site-spoke-c4 dst -m comment --comment "netmgr isolation forward spoke-a spoke-c v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-FORWARD-5 -m set --match-set netmgr-site-spoke-b4 src -m set --match-set netmgr-site-spoke-a4 dst -m comment --comment "netmgr isolation forward spoke-b spoke-a v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-FORWARD-5 -m set --match-set netmgr-site-spoke-c4 src -m set --match-set netmgr-site-spoke-a4 dst -m comment --comment "netmgr isolation forward spoke-c spoke-a v4" -j DROP
iptables-legacy -w -t mangle -I FORWARD -j NETMGR-FORWARD
ip6tables-legacy -w -t mangle -I FORWARD 1 ! -o nm+ -m set ! --match-set netmgr-internal6 dst -m comment --comment "iptables-exporter netmgr traffic=internet-out"
ip6tables-legacy -w -t mangle -I FORWARD 2 ! -i nm+ -m set ! --match-set netmgr-internal6 src -m comment --comment "iptables-exporter netmgr traffic=internet-in"
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD-2
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD-4
ip6tables-legacy -w -t mangle -N NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD ! -i nm+ -m comment --comment "netmgr NETMGR-FORWARD-2" -g NETMGR-FORWARD-2
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD -m comment --comment "netmgr rest of NETMGR-FORWARD-2" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s fc00::/7 -m comment --comment "netmgr NETMGR-FORWARD-2 src in fc00::/7" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s ff00::/8 -m comment --comment "netmgr NETMGR-FORWARD-2 src in ff00::/8" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s fe80::/10 -m comment --comment "netmgr NETMGR-FORWARD-2 src in fe80::/10" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s 100::/64 -m comment --comment "netmgr NETMGR-FORWARD-2 src in 100::/64" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -s ::/127 -m comment --comment "netmgr NETMGR-FORWARD-2 src in ::/127" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m comment --comment "netmgr arrived v6"
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m set --match-set netmgr-pod-in6 dst -m comment --comment "netmgr pod internet-in v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m comment --comment "netmgr unattributed internet-in v6"
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-2 -m comment --comment "netmgr rest in NETMGR-FORWARD-2" -g NETMGR-FORWARD-3
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-3 -d fd00:ec2::254/128 -i nm+ -m conntrack ! --ctreplsrcport 53 --ctdir ORIGINAL -m set --match-set netmgr-pod-protected-out6 src -m comment --comment "netmgr protected fd00:ec2::254/128 v6" -j DROP
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-3 -o nm+ -m set --match-set netmgr-class-others6 src -m set --match-set netmgr-pod-others-in6 dst -m comment --comment "netmgr class others in v6"
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-3 -o nm+ -m set ! --match-set netmgr-classes6 src -m set --match-set netmgr-pod-internal-in6 dst -m comment --comment "netmgr class internal in v6"
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-3 ! -o nm+ -m comment --comment "netmgr NETMGR-FORWARD-4" -g NETMGR-FORWARD-4
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-3 -m comment --comment "netmgr rest of NETMGR-FORWARD-4" -g NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d fc00::/7 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in fc00::/7" -g NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d ff00::/8 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in ff00::/8" -g NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d fe80::/10 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in fe80::/10" -g NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d 100::/64 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in 100::/64" -g NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -d ::/127 -m comment --comment "netmgr NETMGR-FORWARD-4 dst in ::/127" -g NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -m comment --comment "netmgr to the internet v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-4 -m comment --comment "netmgr rest in NETMGR-FORWARD-4" -g NETMGR-FORWARD-5
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-5 -m set ! --match-set netmgr-foreign6 src -m set ! --match-set netmgr-foreign6 dst -m comment --comment "netmgr isolation forward passes own v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-5 -m set --match-set netmgr-site-spoke-a6 src -m set --match-set netmgr-site-spoke-b6 dst -m comment --comment "netmgr isolation forward spoke-a spoke-b v6" -j DROP
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-5 -m set --match-set netmgr-site-spoke-a6 src -m set --match-set netmgr-site-spoke-c6 dst -m comment --comment "netmgr isolation forward spoke-a spoke-c v6" -j DROP
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-5 -m set --match-set netmgr-site-spoke-b6 src -m set --match-set netmgr-site-spoke-a6 dst -m comment --comment "netmgr isolation forward spoke-b spoke-a v6" -j DROP
ip6tables-legacy -w -t mangle -A NETMGR-FORWARD-5 -m set --match-set netmgr-site-spoke-c6 src -m set --match-set netmgr-site-spoke-a6 dst -m comment --comment "netmgr isolation forward spoke-c spoke-a v6" -j DROP
ip6tables-legacy -w -t mangle -I FORWARD -j NETMGR-FORWARD
iptables-legacy -w -t mangle -I OUTPUT 1 ! -o lo -m set ! --match-set netmgr-internal4 dst -m comment --comment "iptables-exporter netmgr traffic=internet-out"
iptables-legacy -w -t mangle -N NETMGR-OUTPUT
iptables-legacy -w -t mangle -A NETMGR-OUTPUT -m set ! --match-set netmgr-foreign4 dst -m comment --comment "netmgr isolation output passes own v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-OUTPUT -m set --match-set netmgr-site-spoke-b4 dst -m comment --comment "netmgr isolation output spoke-a spoke-b v4" -j DROP
iptables-legacy -w -t mangle -A NETMGR-OUTPUT -m set --match-set netmgr-site-spoke-c4 dst -m comment --comment "netmgr isolation output spoke-a spoke-c v4" -j DROP
iptables-legacy -w -t mangle -I OUTPUT -j NETMGR-OUTPUT
ip6tables-legacy -w -t mangle -I OUTPUT 1 ! -o lo -m set ! --match-set netmgr-internal6 dst -m comment --comment "iptables-exporter netmgr traffic=internet-out"
ip6tables-legacy -w -t mangle -N NETMGR-OUTPUT
ip6tables-legacy -w -t mangle -A NETMGR-OUTPUT -m set ! --match-set netmgr-foreign6 dst -m comment --comment "netmgr isolation output passes own v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-OUTPUT -m set --match-set netmgr-link-scope6 src -m comment --comment "netmgr isolation output passes neighbour discovery v6" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-OUTPUT -m set --match-set netmgr-site-spoke-b6 dst -m comment --comment "netmgr isolation output spoke-a spoke-b v6" -j DROP
ip6tables-legacy -w -t mangle -A NETMGR-OUTPUT -m set --match-set netmgr-site-spoke-c6 dst -m comment --comment "netmgr isolation output spoke-a spoke-c v6" -j DROP
ip6tables-legacy -w -t mangle -I OUTPUT -j NETMGR-OUTPUT
iptables-legacy -w -t mangle -N NETMGR-BEFORE_SRCNAT
iptables-legacy -w -t mangle -N NETMGR-BEFORE_SRCNAT-2
iptables-legacy -w -t mangle -N NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -N NETMGR-BEFORE_SRCNAT-4
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT ! -o nm+ -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2" -g NETMGR-BEFORE_SRCNAT-2
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT -m comment --comment "netmgr rest of NETMGR-BEFORE_SRCNAT-2" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 10.0.0.0/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 10.0.0.0/8" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 224.0.0.0/3 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 224.0.0.0/3" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 0.0.0.0/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 0.0.0.0/8" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 127.0.0.0/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 127.0.0.0/8" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 100.64.0.0/10 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 100.64.0.0/10" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 172.16.0.0/12 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 172.16.0.0/12" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 198.18.0.0/15 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 198.18.0.0/15" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 169.254.0.0/16 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 169.254.0.0/16" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 192.168.0.0/16 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 192.168.0.0/16" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -d 168.63.129.16/32 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-2 dst in 168.63.129.16/32" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -m set --match-set netmgr-pod-out4 src -m comment --comment "netmgr pod internet-out v4" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -m addrtype ! --src-type LOCAL -m comment --comment "netmgr unattributed internet-out v4"
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -m comment --comment "netmgr rest in NETMGR-BEFORE_SRCNAT-2" -g NETMGR-BEFORE_SRCNAT-3
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-3 ! -i nm+ -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4" -j NETMGR-BEFORE_SRCNAT-4
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-3 -i nm+ -m set --match-set netmgr-class-others4 dst -m set --match-set netmgr-pod-others-out4 src -m comment --comment "netmgr class others out v4"
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-3 -i nm+ -m set ! --match-set netmgr-classes4 dst -m set --match-set netmgr-pod-internal-out4 src -m comment --comment "netmgr class internal out v4"
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 10.0.0.0/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 10.0.0.0/8" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 224.0.0.0/3 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 224.0.0.0/3" -j RETURN
iptables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 0.0.0.0/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 0.0.0.0/8" -j RETURN
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
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -m addrtype ! --src-type LOCAL -m comment --comment "netmgr unattributed internet-out v6"
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-2 -m comment --comment "netmgr rest in NETMGR-BEFORE_SRCNAT-2" -g NETMGR-BEFORE_SRCNAT-3
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-3 ! -i nm+ -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4" -j NETMGR-BEFORE_SRCNAT-4
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-3 -i nm+ -m set --match-set netmgr-class-others6 dst -m set --match-set netmgr-pod-others-out6 src -m comment --comment "netmgr class others out v6"
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-3 -i nm+ -m set ! --match-set netmgr-classes6 dst -m set --match-set netmgr-pod-internal-out6 src -m comment --comment "netmgr class internal out v6"
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s fc00::/7 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in fc00::/7" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s ff00::/8 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in ff00::/8" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s fe80::/10 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in fe80::/10" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s 100::/64 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in 100::/64" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -s ::/127 -m comment --comment "netmgr NETMGR-BEFORE_SRCNAT-4 src in ::/127" -j RETURN
ip6tables-legacy -w -t mangle -A NETMGR-BEFORE_SRCNAT-4 -m addrtype ! --src-type LOCAL -m comment --comment "netmgr delivered v6"
ip6tables-legacy -w -t mangle -I POSTROUTING -j NETMGR-BEFORE_SRCNAT
iptables-legacy -w -t nat -N NETMGR-POSTROUTING
iptables-legacy -w -t nat -A NETMGR-POSTROUTING -m set --match-set netmgr-ranges4 src -m set ! --match-set netmgr-internal4 dst -m comment --comment "netmgr masquerade v4" -j MASQUERADE
iptables-legacy -w -t nat -A POSTROUTING -j NETMGR-POSTROUTING
ip6tables-legacy -w -t nat -N NETMGR-POSTROUTING
ip6tables-legacy -w -t nat -A NETMGR-POSTROUTING -m set --match-set netmgr-ranges6 src -m set ! --match-set netmgr-internal6 dst -m comment --comment "netmgr masquerade v6" -j MASQUERADE
ip6tables-legacy -w -t nat -A POSTROUTING -j NETMGR-POSTROUTING
