# Runs the files whose names come on standard input, one after another in this shell, each as a reader would paste it.
#
# A line is `here FILE`, or `apart FILE` for commands that are ended by a signal to their process group, whose number goes
# to FILE.group. What they print goes to FILE.out, each command that fails to FILE.failed with its status. FILE.done
# appears in the end.
set -m -E
exec 9<&0 </dev/null
# When the test has ended, its servers and workers end.
trap 'kill $(jobs -p) 2>/dev/null' EXIT
trap 'printf "%s %s\n" "$?" "$BASH_COMMAND" >>"$block.failed"' ERR
while read -r how block <&9; do
  if [ "$how" = apart ]; then
    (source "$block") >"$block.out" 2>&1 9<&- &
    echo $! >"$block.group"
    wait $!
  else
    source "$block" >"$block.out" 2>&1 9<&-
  fi
  : >"$block.done"
done
