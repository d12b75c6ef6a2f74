/* Sends COUNT datagrams of SIZE bytes of IP as fast as it can, on one processor, and prints the
 * nanoseconds one took, and how many it sent: `out` to ADDRESS, which the network namespace NETNS
 * has, or `in` from there. Each of `first` goes to another port, and so begins a connection.
 * `exchange` sends one byte more from sockets of their own, each answered by one there. With SEGMENT
 * each is segmented into parts of so many bytes, if anything on its way has to.
 *
 * First one of another size goes out and is answered, so that whoever tracks connections has seen
 * both directions, and `in` answers it.
 *
 * Between namespaces joined by veth the receiving side runs within the sender's call, as a
 * softirq on the same processor: the time is that of the packet's whole way. It is taken for
 * short trains of packets, and that of the fastest tenth is told: a machine that does
 * something else besides slows some trains down, and makes none faster. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, TRAIN = 8 * BATCH, TRAINS = 4096 };

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int ascending(const void *left, const void *right)
{
	long long a = *(const long long *)left, b = *(const long long *)right;

	return (a > b) - (a < b);
}

static long long send_train(int fd, struct mmsghdr *batch, struct sockaddr_in6 *to)
{
	static unsigned short port = 1024;
	long long began = now();
	int sent;

	for (int left = TRAIN; left > 0; left -= sent) {
		for (int i = 0; to && i < BATCH; i++)
			to[i].sin6_port = htons(++port);
		sent = sendmmsg(fd, batch, left < BATCH ? left : BATCH, 0);
		if (sent < 0) {
			perror("flood");
			exit(1);
		}
	}
	return now() - began;
}

static long long exchange_train(int far, const struct sockaddr_in6 *to, struct iovec *piece)
{
	static int near[TRAIN];
	struct sockaddr_in6 sender;
	socklen_t length = sizeof(sender);
	long long began;
	char byte;

	for (int i = 0; i < TRAIN; i++) {
		near[i] = socket(to->sin6_family, SOCK_DGRAM, 0);
		if (connect(near[i], (struct sockaddr *)to, sizeof(*to)))
			exit(1);
	}
	began = now();
	for (int i = 0; i < TRAIN; i++) {
		if (send(near[i], piece->iov_base, piece->iov_len + 1, 0) < 0 ||
		    recvfrom(far, &byte, 1, 0, (struct sockaddr *)&sender, &length) < 0 ||
		    sendto(far, &byte, 1, 0, (struct sockaddr *)&sender, length) < 0 ||
		    recv(near[i], &byte, 1, 0) < 0)
			exit(1);
	}
	began = now() - began;
	for (int i = 0; i < TRAIN; i++)
		close(near[i]);
	return began;
}

static int is_heard(int fd, struct sockaddr_in6 *sender)
{
	struct pollfd heard = {.fd = fd, .events = POLLIN};
	socklen_t size = sizeof(*sender);
	char byte;

	return poll(&heard, 1, 250) == 1 &&
	       recvfrom(fd, &byte, 1, 0, (struct sockaddr *)sender, &size) == 1;
}

/* Whoever translates addresses is answered where it sends from. */
static int is_answered(int fd, int far)
{
	struct sockaddr_in6 sender;

	for (int tries = 0; tries < 20; tries++) {
		if (send(fd, "", 1, 0) == 1 && is_heard(far, &sender) &&
		    !connect(far, (struct sockaddr *)&sender, sizeof(sender)) &&
		    send(far, "", 1, 0) == 1 && is_heard(fd, &sender))
			return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	static char payload[1500];
	struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(9)};
	struct iovec piece = {.iov_base = payload};
	struct mmsghdr batch[BATCH] = {0};
	static struct sockaddr_in6 each[BATCH];
	cpu_set_t one;
	static long long took[TRAINS];
	int fd, far, own, trains, segment, is_v6, is_inward, is_first, is_exchange;

	if (argc != 6 && argc != 7)
		return 2;
	/* The port is at the same place in both families' structures. */
	is_v6 = inet_pton(AF_INET6, argv[1], &to.sin6_addr);
	if (!is_v6 && !inet_pton(AF_INET, argv[1], &((struct sockaddr_in *)&to)->sin_addr))
		return 2;
	to.sin6_family = is_v6 ? AF_INET6 : AF_INET;
	trains = atoi(argv[2]) / TRAIN;
	piece.iov_len = atoi(argv[3]) - (is_v6 ? 40 : 20) - 8;
	is_inward = !strcmp(argv[5], "in");
	is_first = !strcmp(argv[5], "first");
	is_exchange = !strcmp(argv[5], "exchange");
	if (piece.iov_len > sizeof(payload) || trains < 1 || trains > TRAINS)
		return 2;
	segment = argc > 6 ? atoi(argv[6]) : 0;
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	sched_setaffinity(0, sizeof(one), &one);
	own = open("/proc/self/ns/net", O_RDONLY);
	fd = socket(to.sin6_family, SOCK_DGRAM, 0);
	if (fd < 0 || setns(open(argv[4], O_RDONLY), CLONE_NEWNET))
		return 1;
	far = socket(to.sin6_family, SOCK_DGRAM, 0);
	if (far < 0 || bind(far, (struct sockaddr *)&to, sizeof(to)) ||
	    connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return 1;
	if (!is_answered(fd, far)) {
		fprintf(stderr, "flood: nothing passes to %s and back\n", argv[1]);
		return 1;
	}
	if (setsockopt(fd, SOL_UDP, UDP_SEGMENT, &segment, sizeof(segment)) ||
	    setsockopt(far, SOL_UDP, UDP_SEGMENT, &segment, sizeof(segment)))
		return 1;
	for (int i = 0; i < BATCH; i++) {
		batch[i].msg_hdr = (struct msghdr){.msg_iov = &piece, .msg_iovlen = 1};
		each[i] = to;
		if (is_first) {
			batch[i].msg_hdr.msg_name = &each[i];
			batch[i].msg_hdr.msg_namelen = sizeof(to);
		}
	}
	if (is_exchange) {
		to.sin6_port = htons(10);
		far = socket(to.sin6_family, SOCK_DGRAM, 0);
		if (bind(far, (struct sockaddr *)&to, sizeof(to)) || setns(own, CLONE_NEWNET))
			return 1;
	}
	for (int i = 0; i < trains; i++)
		took[i] = is_exchange ? exchange_train(far, &to, &piece)
				      : send_train(is_inward ? far : fd, batch, is_first ? each : 0);
	qsort(took, trains, sizeof(*took), ascending);
	printf("%.1f %d\n", (double)took[trains / 10] / TRAIN, is_exchange ? 0 : trains * TRAIN);
	return 0;
}
