#!/bin/sh
# Makes the tokens of docker-compose.yml at its first start, in a folder for each of those who may read them: the servers
# and whoever works in their containers, the workers, and Prometheus. A folder that has them is left as it is. So is the
# secret of the servers, by which they sign the calls that they make of each other, and the key with which they encrypt
# what is secret in Elasticsearch.
#
#     tokens.sh [FOLDER]
set -eu
umask 077

root=${1:-/etc/leasehold}
settings=$root/server/leasehold.toml
for secret in "$root/server/cluster-secret" "$root/server/secrets-key"; do
  [ ! -e "$secret" ] || continue
  head -c 32 /dev/urandom | base64 >"$secret.new"
  mv "$secret.new" "$secret"
done
[ ! -e "$settings" ] || exit 0

# Adds a token to the settings of the servers, and prints it.
make() {
  leasehold token --name "$1" --role "$2" >"$root/server/made"
  sed -n '/^\[\[tokens\]\]$/,$p' "$root/server/made" >>"$settings.new"
  sed -n 's/^ *\(lh_[0-9a-f]*\)$/\1/p' "$root/server/made"
  rm "$root/server/made"
}

: >"$settings.new"
admin=$(make admin read,submit,work,admin)
worker=$(make worker work)
prometheus=$(make prometheus read)
printf '%s\n' "$admin" >"$root/server/admin-token"
# For `docker compose exec leasehold leasehold …`.
printf '[client]\ntoken = "%s"\n' "$admin" >>"$settings.new"
printf '[client]\ntoken = "%s"\n' "$worker" >"$root/worker/leasehold.toml"
# Prometheus is another user in its container.
printf '%s' "$prometheus" >"$root/metrics/token"
chmod 0644 "$root/metrics/token"
mv "$settings.new" "$settings"
