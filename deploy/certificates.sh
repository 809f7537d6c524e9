#!/bin/sh
# certificates.sh DIR NAME...: an authority (DIR/ca.pem, made once) and for each NAME a certificate with that common name:
# DIR/NAME.pem, DIR/NAME.key and the security file DIR/NAME.toml. For trying it out; a company has an authority of its own.
# A NAME that has a certificate gets a new one (renewal); its security file stays as it is.
# certificates.sh DIR --revoke NAME...: puts all certificates that each NAME got so far on the deny list, DIR/crl.pem. The
# security files name it; copy it to every host. DIR/crl.der is the same for etcd.
#   SANS  more subject alternative names, with commas: SANS=IP:10.0.0.1,DNS:etcd-0.lan
#   DAYS  how long the certificates hold (30). NOT_AFTER=YYYYMMDDHHMMSSZ says it to the second.
set -eu
umask 077
usage() {
    echo "usage: certificates.sh DIR [--revoke] NAME..." >&2
    exit 2
}
[ $# -ge 2 ] || usage
command -v openssl >/dev/null || { echo "certificates.sh: no openssl (Debian: apt-get install openssl)" >&2; exit 1; }
dir=$1
shift
revoke=
if [ "$1" = --revoke ]; then
    revoke=yes
    shift
    [ $# -ge 1 ] || usage
fi
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
days=${DAYS:-30}
authority_days=3650
# an hour back: the clocks of two machines differ
start=$(date -u -d '-1 hour' +%Y%m%d%H%M%SZ)
work=$(mktemp -d "$dir/.new.XXXXXX")
trap 'rm -rf "$work"' EXIT

quietly() {
    "$@" >"$work/openssl.out" 2>&1 || { cat "$work/openssl.out" >&2; exit 1; }
}

key() {
    openssl ecparam -name prime256v1 -genkey -noout -out "$1"
}

config() {
    cat >"$work/config" <<CONFIG
[ca]
default_ca = own
[own]
database = $dir/ca.index
new_certs_dir = $work
certificate = $dir/ca.pem
private_key = $dir/ca.key
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = leaf
crl_extensions = list
unique_subject = no
[any]
commonName = supplied
[leaf]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth,clientAuth
subjectAltName = DNS:$1${SANS:+,$SANS}
[list]
authorityKeyIdentifier = keyid
CONFIG
}

# it holds as long as the authority: once a list has lapsed, no connection is made
list() {
    config list
    quietly openssl ca -config "$work/config" -gencrl -crl_lastupdate "$start" -crldays "$authority_days" -out "$work/crl"
    quietly openssl crl -in "$work/crl" -outform DER -out "$work/der"
    chmod 644 "$work/crl" "$work/der"
    mv "$work/crl" "$dir/crl.pem"
    mv "$work/der" "$dir/crl.der"
}

if [ ! -f "$dir/ca.pem" ]; then
    key "$dir/ca.key"
    quietly openssl req -x509 -new -sha256 -key "$dir/ca.key" -days "$authority_days" -subj "/CN=supervisor-ca" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign -out "$dir/ca.pem"
    chmod 644 "$dir/ca.pem"
fi
[ -f "$dir/ca.index" ] || : >"$dir/ca.index"

if [ -n "$revoke" ]; then
    for name in "$@"; do
        # the columns are state, end, time of revocation, serial number, file, subject
        awk -F '\t' -v OFS='\t' -v subject="/CN=$name" -v now="$(date -u +%y%m%d%H%M%SZ)" '
            $6 == subject { found = 1; if ($1 != "R") { $1 = "R"; $3 = now } }
            { print }
            END { exit !found }' "$dir/ca.index" >"$work/index" || {
            echo "certificates.sh: no certificate of $name was made in $dir" >&2
            exit 1
        }
        mv "$work/index" "$dir/ca.index"
    done
    list
    exit
fi
[ -f "$dir/crl.pem" ] || list

for name in "$@"; do
    key "$work/key"
    quietly openssl req -new -sha256 -key "$work/key" -subj "/CN=$name" -out "$work/request"
    config "$name"
    if [ -n "${NOT_AFTER:-}" ]; then ends="-enddate $NOT_AFTER"; else ends="-days $days"; fi
    # shellcheck disable=SC2086
    quietly openssl ca -batch -notext -config "$work/config" -startdate "$start" $ends -in "$work/request" -out "$work/cert"
    chmod 644 "$work/cert"
    # each is replaced whole; who reads between the two goes on with the old pair until both are there
    mv "$work/key" "$dir/$name.key"
    mv "$work/cert" "$dir/$name.pem"
    # a site adds lines to it, as `signs`
    [ -f "$dir/$name.toml" ] || printf 'ca = "ca.pem"\ncrl = "crl.pem"\ncert = "%s.pem"\nkey = "%s.key"\n' "$name" "$name" >"$dir/$name.toml"
done
