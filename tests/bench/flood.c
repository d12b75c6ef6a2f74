/* Sends COUNT datagrams of SIZE bytes of IP to ADDRESS as fast as it can, on one processor,
 * and prints the nanoseconds it took.
 *
 * Between namespaces joined by veth the receiving side runs within the sender's call, as a
 * softirq on the same processor: the time is that of the packet's whole way. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

enum { BATCH = 64, HEADERS = 20 + 8 };

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
	static char payload[1500];
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
	struct iovec piece = {.iov_base = payload};
	struct mmsghdr batch[BATCH] = {0};
	cpu_set_t one;
	long long began;
	int fd, left, sent;

	if (argc != 4 || !inet_pton(AF_INET, argv[1], &to.sin_addr))
		return 2;
	left = atoi(argv[2]);
	piece.iov_len = atoi(argv[3]) - HEADERS;
	if (piece.iov_len > sizeof(payload))
		return 2;
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	sched_setaffinity(0, sizeof(one), &one);
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return 1;
	for (int i = 0; i < BATCH; i++)
		batch[i].msg_hdr = (struct msghdr){.msg_iov = &piece, .msg_iovlen = 1};
	began = now();
	for (; left > 0; left -= sent) {
		sent = sendmmsg(fd, batch, left < BATCH ? left : BATCH, 0);
		if (sent < 0) {
			perror("flood");
			return 1;
		}
	}
	printf("%lld\n", now() - began);
	return 0;
}
