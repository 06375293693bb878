# Runs a server for as long as the test process lives.
#
#     watchdog.sh FOLDER COMMAND…
#
# Standard input is a pipe from the test process. Each line on it starts the server, again if it ran before. The end of
# it – the test process is gone, no matter how – kills the server's whole process group and removes FOLDER.
#
# In FOLDER: `log` is the server's output, `group` its process group, `exited` its exit status once it ended by itself.

# Monitor mode gives each background job a process group of its own from its first moment: Elasticsearch's launcher
# starts the server as a second process, which does not end with a killed launcher.
set -um

folder=$1
shift
group=

finish() {
  [ -z "$group" ] || kill -KILL -- "-$group"
  # What is being killed may still write; a few rounds are enough.
  for _ in {1..25}; do
    rm -rf "$folder" && break
    sleep 0.2
  done
}
trap finish EXIT
trap 'exit 1' HUP INT TERM

while read -r _; do
  rm -f "$folder/exited"
  # One that was killed has not ended by itself: this shell is of the same group, and may live a moment longer.
  { "$@"; status=$?; [ "$status" -eq 137 ] || echo "$status" >"$folder/exited"; } </dev/null >>"$folder/log" 2>&1 &
  group=$!
  echo "$group" >"$folder/group.new" && mv "$folder/group.new" "$folder/group"
done
