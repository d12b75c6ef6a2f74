/* Sends COUNT datagrams of SIZE bytes of IP to ADDRESS as fast as it can, on one processor,
 * and prints the nanoseconds one took, and how many it sent.
 *
 * First it sends one of another size and waits for its answer, so that whoever tracks connections
 * has seen both directions.
 *
 * Between namespaces joined by veth the receiving side runs within the sender's call, as a
 * softirq on the same processor: the time is that of the packet's whole way. It is taken for
 * short trains of packets, and that of the fastest tenth is told: a machine that does
 * something else besides slows some trains down, and makes none faster. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

enum { BATCH = 64, TRAIN = 8 * BATCH, TRAINS = 4096, HEADERS = 20 + 8 };

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

static int is_answered(int fd)
{
	struct pollfd answer = {.fd = fd, .events = POLLIN};
	char byte = 0;

	for (int tries = 0; tries < 20; tries++) {
		if (send(fd, &byte, 1, 0) == 1 && poll(&answer, 1, 250) == 1 && recv(fd, &byte, 1, 0) == 1)
			return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	static char payload[1500];
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
	struct iovec piece = {.iov_base = payload};
	struct mmsghdr batch[BATCH] = {0};
	cpu_set_t one;
	static long long took[TRAINS];
	int fd, trains;

	if (argc != 4 || !inet_pton(AF_INET, argv[1], &to.sin_addr))
		return 2;
	trains = atoi(argv[2]) / TRAIN;
	piece.iov_len = atoi(argv[3]) - HEADERS;
	if (piece.iov_len > sizeof(payload) || trains < 1 || trains > TRAINS)
		return 2;
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	sched_setaffinity(0, sizeof(one), &one);
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return 1;
	if (!is_answered(fd)) {
		fprintf(stderr, "flood: nobody answers at %s\n", argv[1]);
		return 1;
	}
	for (int i = 0; i < BATCH; i++)
		batch[i].msg_hdr = (struct msghdr){.msg_iov = &piece, .msg_iovlen = 1};
	for (int i = 0; i < trains; i++)
		took[i] = send_train(fd, batch);
	qsort(took, trains, sizeof(*took), ascending);
	printf("%.1f %d\n", (double)took[trains / 10] / TRAIN, trains * TRAIN);
	return 0;
}
