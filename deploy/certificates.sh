#!/bin/sh
# certificates.sh DIR NAME...: an authority (DIR/ca.pem, made once) and for each NAME a certificate with that common name:
# DIR/NAME.pem, DIR/NAME.key and the security file DIR/NAME.toml. For trying it out; a company has an authority of its own.
# A NAME that has a certificate gets a new one (renewal).
#   SANS  more subject alternative names, with commas: SANS=IP:10.0.0.1,DNS:etcd-0.lan
#   DAYS  how long the certificates hold (365). NOT_AFTER=YYYYMMDDHHMMSSZ says it to the second.
set -eu
umask 077
[ $# -ge 2 ] || { echo "usage: certificates.sh DIR NAME..." >&2; exit 2; }
command -v openssl >/dev/null || { echo "certificates.sh: no openssl (Debian: apt-get install openssl)" >&2; exit 1; }
dir=$1
shift
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
days=${DAYS:-365}

quietly() {
    "$@" >"$dir/openssl.out" 2>&1 || { cat "$dir/openssl.out" >&2; rm -f "$dir/openssl.out"; exit 1; }
    rm -f "$dir/openssl.out"
}

key() {
    openssl ecparam -name prime256v1 -genkey -noout -out "$1"
}

if [ ! -f "$dir/ca.pem" ]; then
    key "$dir/ca.key"
    quietly openssl req -x509 -new -sha256 -key "$dir/ca.key" -days 3650 -subj "/CN=supervisor-ca" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign -out "$dir/ca.pem"
    chmod 644 "$dir/ca.pem"
fi

for name in "$@"; do
    work=$(mktemp -d "$dir/.new.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    key "$work/key"
    quietly openssl req -new -sha256 -key "$work/key" -subj "/CN=$name" -out "$work/request"
    : >"$work/index"
    cat >"$work/config" <<CONFIG
[ca]
default_ca = own
[own]
database = $work/index
new_certs_dir = $work
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = leaf
unique_subject = no
[any]
commonName = supplied
[leaf]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth,clientAuth
subjectAltName = DNS:$name${SANS:+,$SANS}
CONFIG
    if [ -n "${NOT_AFTER:-}" ]; then ends="-enddate $NOT_AFTER"; else ends="-days $days"; fi
    # an hour back: the clocks of two machines differ
    start=$(date -u -d '-1 hour' +%Y%m%d%H%M%SZ)
    # shellcheck disable=SC2086
    quietly openssl ca -batch -notext -config "$work/config" -cert "$dir/ca.pem" -keyfile "$dir/ca.key" \
        -startdate "$start" $ends -in "$work/request" -out "$work/cert"
    chmod 644 "$work/cert"
    # each is replaced whole; who reads between the two goes on with the old pair until both are there
    mv "$work/key" "$dir/$name.key"
    mv "$work/cert" "$dir/$name.pem"
    printf 'ca = "ca.pem"\ncert = "%s.pem"\nkey = "%s.key"\n' "$name" "$name" >"$dir/$name.toml"
    rm -rf "$work"
done
