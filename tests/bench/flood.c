/* Sends COUNT datagrams of SIZE bytes of IP as fast as it can, on one processor, and prints the
 * nanoseconds one took, and how many it sent: `out` to ADDRESS, which the network namespace NETNS
 * has, or `in` from there.
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
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

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

static long long send_train(int fd, struct mmsghdr *batch)
{
	long long began = now();
	int sent;

	for (int left = TRAIN; left > 0; left -= sent) {
		sent = sendmmsg(fd, batch, left < BATCH ? left : BATCH, 0);
		if (sent < 0) {
			perror("flood");
			exit(1);
		}
	}
	return now() - began;
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
	cpu_set_t one;
	static long long took[TRAINS];
	int fd, far, trains, is_v6, is_inward;

	if (argc != 6)
		return 2;
	/* The port is at the same place in both families' structures. */
	is_v6 = inet_pton(AF_INET6, argv[1], &to.sin6_addr);
	if (!is_v6 && !inet_pton(AF_INET, argv[1], &((struct sockaddr_in *)&to)->sin_addr))
		return 2;
	to.sin6_family = is_v6 ? AF_INET6 : AF_INET;
	trains = atoi(argv[2]) / TRAIN;
	piece.iov_len = atoi(argv[3]) - (is_v6 ? 40 : 20) - 8;
	is_inward = !strcmp(argv[5], "in");
	if (piece.iov_len > sizeof(payload) || trains < 1 || trains > TRAINS)
		return 2;
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	sched_setaffinity(0, sizeof(one), &one);
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
	for (int i = 0; i < BATCH; i++)
		batch[i].msg_hdr = (struct msghdr){.msg_iov = &piece, .msg_iovlen = 1};
	for (int i = 0; i < trains; i++)
		took[i] = send_train(is_inward ? far : fd, batch);
	qsort(took, trains, sizeof(*took), ascending);
	printf("%.1f %d\n", (double)took[trains / 10] / TRAIN, trains * TRAIN);
	return 0;
}
