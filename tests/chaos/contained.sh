# What `program.py` does, for an image that has a shell and nothing else. It stays until its time is over or it is told to end.
who="$WEFT_JOB_ID $WEFT_EPOCH $WEFT_RANK"
read -r born rest </proc/uptime
instance="$born-$(tr -dc a-z </dev/urandom | head -c 8)"
copy="$CHAOS_FOLDER/said/$WEFT_JOB_ID.$WEFT_EPOCH.$WEFT_RANK.$instance"
ended=0
trap 'ended=1' TERM

trace() {
  event=$1
  shift
  read -r at rest </proc/uptime
  echo "$event $at $who $instance $*" >>"$CHAOS_FOLDER/traces/$CHAOS_KEY"
}

: >>"$copy"
trace start engine "${WEFT_GPUS:--}" "$WEFT_WORLD_SIZE"
beats=0
while [ "$beats" -lt "$CHAOS_BEATS" ]; do
  trace beat
  line="$beats $instance ...................................................."
  echo "$line" && echo "$line" >>"$copy"
  if [ "$ended" = 1 ]; then
    trace end 143
    exit 143
  fi
  sleep 0.1
  beats=$((beats + 1))
done
trace end 0
