/* Begins CONNECTIONS TCP connections from FROM to SERVICES addresses beginning at TO, in turn, as
 * fast as it can, on one processor, and prints the nanoseconds one took.
 *
 * Only first packets are sent, each from a port of its own. As in flood.c, their whole way is
 * within the sender's call, and the time is that of the fastest tenth of short trains. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

enum { TRAIN = 256, TRAINS = 240, FIRST_PORT = 2048, STRIDE = 7919 };

struct segment {
	struct iphdr ip;
	struct tcphdr tcp;
};

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

static unsigned sum(const void *data, size_t size, unsigned total)
{
	const unsigned short *words = data;

	for (size_t i = 0; i < size / 2; i++)
		total += words[i];
	return total;
}

static unsigned short folded(unsigned total)
{
	while (total >> 16)
		total = (total & 0xffff) + (total >> 16);
	return ~total;
}

static void fill(struct segment *one, struct in_addr from, struct in_addr to, int port)
{
	unsigned pseudo;

	*one = (struct segment){
		.ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP,
		       .tot_len = htons(sizeof(*one)), .saddr = from.s_addr, .daddr = to.s_addr},
		.tcp = {.source = htons(port), .dest = htons(80), .doff = 5, .syn = 1},
	};
	pseudo = sum(&one->ip.saddr, 8, htons(IPPROTO_TCP) + htons(sizeof(one->tcp)));
	one->tcp.check = folded(sum(&one->tcp, sizeof(one->tcp), pseudo));
}

static long long send_train(int fd, struct mmsghdr *train)
{
	long long began = now();
	int sent;

	for (int done = 0; done < TRAIN; done += sent) {
		sent = sendmmsg(fd, train + done, TRAIN - done, 0);
		if (sent < 0) {
			perror("connect");
			exit(1);
		}
	}
	return now() - began;
}

int main(int argc, char **argv)
{
	static struct segment segments[TRAIN];
	static struct sockaddr_in to[TRAIN];
	static struct iovec pieces[TRAIN];
	static struct mmsghdr train[TRAIN];
	static long long took[TRAINS];
	struct in_addr from, first;
	int fd, trains, services;
	cpu_set_t one;

	if (argc != 5 || !inet_pton(AF_INET, argv[1], &from) || !inet_pton(AF_INET, argv[2], &first))
		return 2;
	services = atoi(argv[3]);
	trains = atoi(argv[4]) / TRAIN;
	if (services < 1 || trains < 1 || trains > TRAINS)
		return 2;
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	sched_setaffinity(0, sizeof(one), &one);
	fd = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);
	if (fd < 0)
		return 1;
	for (int i = 0; i < TRAIN; i++) {
		pieces[i] = (struct iovec){&segments[i], sizeof(segments[i])};
		train[i].msg_hdr = (struct msghdr){.msg_name = &to[i], .msg_namelen = sizeof(to[i]),
						   .msg_iov = &pieces[i], .msg_iovlen = 1};
	}
	for (int i = 0, n = 0; i < trains; i++) {
		for (int j = 0; j < TRAIN; j++, n++) {
			unsigned service = (unsigned long long)n * STRIDE % services;
			struct in_addr vip = {htonl(ntohl(first.s_addr) + service)};

			to[j] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = vip};
			fill(&segments[j], from, vip, FIRST_PORT + n);
		}
		took[i] = send_train(fd, train);
	}
	qsort(took, trains, sizeof(*took), ascending);
	printf("%.1f\n", (double)took[trains / 10] / TRAIN);
	return 0;
}
