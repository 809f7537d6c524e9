#!/bin/sh
# bare.sh: run `make check` in a bare root folder made by debootstrap, with Python, make, gcc and git alone: as root, then
# as an ordinary user. Needs root and debootstrap; what is mounted and started is gone with the script.
#
# BARE=DIR keeps the root folder there for the next time. The Python packages are borrowed, read-only, from this checkout's .venv.
set -eu
release=bookworm
mirror=${MIRROR:-http://deb.debian.org/debian}
user=65533 # of no name, as in a container
top=$(cd "$(dirname "$0")/.." && pwd)

if [ "$(id -u)" != 0 ]; then
    echo "bare.sh: a root folder is made by root alone: run \`make test-bare\` as root" >&2
    exit 2
fi
if ! command -v debootstrap >/dev/null; then
    echo "bare.sh: no \`debootstrap\` command (Debian: apt-get install debootstrap)" >&2
    exit 2
fi
if ! "$top/.venv/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    echo "bare.sh: $release has Python 3.11 and borrows the packages of .venv: make that with python3.11" >&2
    exit 2
fi
if [ -z "${BARE_INSIDE:-}" ]; then
    root=${BARE:-$(mktemp -d)}
    [ -n "${BARE:-}" ] || trap 'rm -rf --one-file-system "$root"' EXIT
    trap 'exit 1' HUP INT TERM
    chmod 755 "$root" # mktemp makes it for its owner alone, and an ordinary user is to enter it
    if [ ! -e "$root/made" ]; then
        debootstrap --variant=minbase --include=python3,python3-venv,make,gcc,libc6-dev,git $release "$root" "$mirror" >"$root.log" 2>&1 ||
            { tail -5 "$root.log" >&2; exit 1; }
        rm -f "$root.log"
        touch "$root/made"
    fi
    # with mounts and processes of its own, which are gone with it
    BARE_INSIDE=$root unshare --mount --pid --fork --kill-child sh "$0"
    exit
fi

root=$BARE_INSIDE
here=$root/srv/everstep
packages=$("$top/.venv/bin/python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
rm -rf "$here"
mkdir -p "$here" "$root/srv/packages"
tar -C "$top" --exclude=./.venv --exclude=./runs --exclude='./.*_cache' --exclude=./.hypothesis -c . | tar -C "$here" --no-same-owner -x
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind -o ro "$packages" "$root/srv/packages"

inside() { # inside USER HOME COMMAND...
    who=$1 home=$2
    shift 2
    env -i HOME="$home" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        chroot --userspec="$who:$who" "$root" sh -c 'cd /srv/everstep && exec "$@"' sh "$@"
}

inside 0 /root python3 -m venv --without-pip .venv
echo /srv/everstep >"$here/.venv/lib/python3.11/site-packages/borrowed.pth"
echo /srv/packages >>"$here/.venv/lib/python3.11/site-packages/borrowed.pth"
for file in "$top/.venv/bin"/*; do
    name=$(basename "$file")
    [ ! -e "$here/.venv/bin/$name" ] || continue
    sed "1s|^#!.*/python[0-9.]*$|#!/srv/everstep/.venv/bin/python|" "$file" >"$here/.venv/bin/$name"
    chmod +x "$here/.venv/bin/$name"
done
touch "$here/.venv/installed" "$here/.venv/installed-dev"

echo "as root"
inside 0 /root make check
echo "as an ordinary user"
mkdir -p "$root/srv/home"
chown -R $user:$user "$here" "$root/srv/home"
inside $user /srv/home make check
