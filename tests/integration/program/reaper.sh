# Kills what a test process leaves behind.
#
# Standard input is a pipe from the test process, which says of each process that it has started `+ PID`, and `- PID`
# once that has ended. At the end of it – the test process is gone, no matter how – those that are left are killed.

set -u
left=()
while read -r sign pid; do
  case $sign in
    +) left[pid]=yes ;;
    -) unset "left[pid]" ;;
  esac
done
[ ${#left[@]} -eq 0 ] || kill -KILL "${!left[@]}"
