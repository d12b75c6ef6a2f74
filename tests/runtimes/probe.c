/* probe ADDRESS PORT COUNT SIZE [SECONDS]
 * Sends COUNT datagrams of SIZE bytes, each after the echo of the one before, for which it waits
 * so long. Exit 0: every echo came back. Static, so that it runs in any container. */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <arpa/inet.h>
#include <unistd.h>

static int dial(const char *address, int port, int seconds)
{
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct timeval patience = {.tv_sec = seconds};
	int is_v4 = inet_pton(AF_INET, address, &v4.sin_addr);
	int fd;

	if (!is_v4 && !inet_pton(AF_INET6, address, &v6.sin6_addr))
		return -1;
	fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_DGRAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (is_v4)
		return connect(fd, (struct sockaddr *)&v4, sizeof(v4)) ? -1 : fd;
	return connect(fd, (struct sockaddr *)&v6, sizeof(v6)) ? -1 : fd;
}

int main(int argc, char **argv)
{
	static char out[65000], in[65000];
	int fd, count, size;

	if (argc < 5 || argc > 6)
		return 2;
	fd = dial(argv[1], atoi(argv[2]), argc > 5 ? atoi(argv[5]) : 30);
	count = atoi(argv[3]);
	size = atoi(argv[4]);
	if (fd < 0 || size < 0 || size > (int)sizeof(out))
		return 2;
	memset(out, 'p', size);
	while (count-- > 0)
		if (send(fd, out, size, 0) != size || recv(fd, in, sizeof(in), 0) != size) {
			perror("probe");
			return 1;
		}
	return 0;
}
