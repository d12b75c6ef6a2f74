# netmgr's image: the agent, the exporter, the controller and the CNI plugin's launchers. `make image` builds
# and tests it; BASE selects another Debian 12 or newer, from a mirror for example. A release names its base by
# digest (`.ci/image --release`), since a tag is another image tomorrow. What the image is made of is in
# /usr/share/sbom/netmgr.cdx.json.
ARG BASE=debian:bookworm-slim

# ---- launchers, packages, netmgr --------------------------------------------------------------------
FROM ${BASE} AS build
# libnftables is loaded in process; the package iptables has the agent's programs and libiptc. The
# cross compiler is for the other architecture's launcher: a node's may differ from the build machine's.
RUN case "$(dpkg --print-architecture)" in \
        amd64) other=arm64 machine=aarch64 ;; \
        arm64) other=amd64 machine=x86-64 ;; \
    esac \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        python3 libnftables1 iptables \
        python3-venv python3-dev gcc libc6-dev "gcc-$machine-linux-gnu" "libc6-dev-$other-cross"
COPY .ci/image-root .ci/
# Debian's Python ends with these; libc-bin has ldconfig, which ctypes finds libraries with.
RUN .ci/image-root /image base-files libc-bin python3 libnftables1 iptables

WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
COPY .ci/build.lock .ci/runtime.lock .ci/
RUN python3 -m venv /build \
    && /build/bin/pip install --require-hashes --no-deps --requirement .ci/build.lock
RUN python3 -m venv --without-pip /opt/netmgr \
    && /build/bin/pip --python /opt/netmgr/bin/python install --require-hashes --no-deps --no-compile \
        --requirement .ci/build.lock \
    && /build/bin/pip --python /opt/netmgr/bin/python install --require-hashes --no-deps --no-compile \
        --no-build-isolation --use-pep517 --requirement .ci/runtime.lock \
    && /build/bin/pip --python /opt/netmgr/bin/python uninstall --yes \
        editables hatchling packaging pathspec pluggy setuptools tomlkit trove-classifiers \
        aiohttp-retry
# Only the launchers' own sources, so that no other change compiles them again.
COPY cni/__init__.py cni/build.py cni/launcher.c cni/config.h cni/variables.h cni/
COPY netmgr/__init__.py netmgr/descriptors.py netmgr/durable.py netmgr/errors.py netmgr/programs.py netmgr/
RUN /build/bin/python -c "from cni import build; [build.launcher(each) for each in build.MACHINES]"
COPY pyproject.toml README.md LICENSE ./
COPY cni cni
COPY exporter exporter
COPY netmgr netmgr
# What `netmgr version` says; .ci/image passes it, since git's data is not here.
ARG NETMGR_COMMIT
ARG SOURCE_DATE_EPOCH
RUN NETMGR_ARCHITECTURES="amd64 arm64" /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /build/bin/pip --python /opt/netmgr/bin/python install --no-deps --no-index --no-compile /wheels/*.whl
COPY .ci/image-prune .ci/
RUN PYTHONDONTWRITEBYTECODE=1 /opt/netmgr/bin/python .ci/image-prune
COPY .ci/image-sbom .ci/
RUN mkdir -p /image/usr/share/sbom \
    && PYTHONDONTWRITEBYTECODE=1 /opt/netmgr/bin/python .ci/image-sbom /image >/image/usr/share/sbom/netmgr.cdx.json
COPY configs/seccomp /opt/netmgr/share/seccomp
# Byte code that is valid whatever the time stamps of its sources, which not every engine keeps. -f: pip has imported
# what its own modules look for.
RUN python3 -m compileall -q -f --invalidation-mode unchecked-hash -s /image -p / /image/usr/lib/python3* \
    && python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/netmgr

# ---- the image: no shell, no package manager ---------------------------------------------------------
FROM scratch AS image
COPY --from=build /image /
COPY --from=build /opt/netmgr /opt/netmgr
# The processes write nothing below the root: containers may have it read-only.
ENV PATH=/opt/netmgr/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="netmgr" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.description="Native pod addresses and byte-exact internet accounting for Kubernetes"
# Exporter, controller and Services need no privileges; the agent's container requests root itself.
USER 65534:65534
ENTRYPOINT ["netmgr"]
CMD ["--help"]

# ---- tests of the image: this stage fails to build if they fail, and is not part of it --------
FROM image AS check
COPY .ci/try-image /
RUN ["python3", "/try-image"]
USER 0:0
RUN ["python3", "/try-image"]

FROM image
