#!/usr/bin/env bash
# `World::from_env` under the launchers whose variables it reads: Open MPI, MPICH, Slurm with two nodes on this machine, and
# torchrun where there is one. Each starts examples/ranks several times; together, the ranks must load what one process alone loads,
# batch by batch. As root, installs what is missing by apt.
#
#     ci/launchers.sh                  all
#     ci/launchers.sh openmpi slurm    these
. "$(dirname "$0")/lib.sh"

run cargo build --example ranks --no-default-features
work=$(mktemp -d)
started=()
stop() {
    ((${#started[@]} == 0)) || kill "${started[@]}" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap stop EXIT

# `ranks FOLDER ARGUMENTS`: the example, which writes to a file of its own there.
ln -s "$(realpath "${CARGO_TARGET_DIR:-target}/debug/examples/ranks")" "$work/example"
cat >"$work/ranks" <<'END'
#!/bin/sh
folder=$1
shift
exec "$(dirname "$0")/example" --epochs 2 "$@" >"$(mktemp "$folder/XXXXXX")"
END
# `batch [LAUNCHER] PROGRAM ARGUMENTS`: a batch script for Slurm with this one command, in a job of two nodes and four tasks.
# (`sbatch --wait` asks only every ten seconds whether the job has ended.)
cat >"$work/batch" <<'END'
#!/bin/sh
work=$(dirname "$0")
status=$(mktemp -u "$work/status-XXXXXX")
mkfifo "$status"
sbatch --quiet --nodes 2 --ntasks 4 --output "$work/batch.log" --open-mode append --wrap "$*; echo \$? >$status" &&
    exit "$(cat "$status")"
END
# `first PROGRAM ARGUMENTS`: in a step, only its first task runs that.
cat >"$work/first" <<'END'
#!/bin/sh
[ "$SLURM_PROCID" = 0 ] || exit 0
exec "$@"
END
chmod +x "$work/ranks" "$work/batch" "$work/first"

# What ranks printed, put together: the samples of each global batch, in order.
together() {
    grep -h epoch "$@" | sort -k6,6n -k8,8n -k2,2n | awk '
        { batch = $5 " " $6 " " $7 " " $8; for (i = 1; i <= 8; i++) $i = "" }
        batch != last { printf "%s%s", (NR > 1 ? "\n" : ""), batch }
        { sub(/^ +/, " "); printf "%s", $0; last = batch }
        END { print "" }'
}

# `expect LOCAL_RANKS LAUNCHER...`: it starts as many processes as there are local ranks, which are in the order of the ranks.
launches=0
expect() {
    local locals=$1 ranks=() rank=0 folder
    shift
    launches=$((launches + 1))
    folder=$work/$launches
    mkdir "$folder"
    step "${*/#$work\//}"
    if ! timeout 60 "$@" "$work/ranks" "$folder" 2>"$folder.log"; then
        cat "$work"/*.log "$folder.log"
        return 1
    fi
    for each in $locals; do
        ranks+=("rank $rank of $(wc -w <<<"$locals"), GPU $each of this host")
        rank=$((rank + 1))
    done
    diff <(printf '%s\n' "${ranks[@]}") <(grep -h GPU "$folder"/* | sort)
    diff <(together "$folder"/*) "$work/alone" >"$folder.diff" || {
        head -c 2000 "$folder.diff"
        return 1
    }
}

# `installed PROGRAM PACKAGES`: whether there is such a program, once these packages are installed.
updated=
installed() {
    local program=$1
    shift
    command -v "$program" >/dev/null && return
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        [[ $updated ]] || apt-get update >&2 || true
        updated=yes
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >&2 || true
    fi
    command -v "$program" >/dev/null || {
        skip "$program is missing, and the packages $* could not be installed"
        return 1
    }
}

openmpi=(mpirun.openmpi --oversubscribe)
[[ $(id -u) != 0 ]] || openmpi+=(--allow-run-as-root)
mpich=(mpirun.mpich)

openmpi() {
    installed "${openmpi[0]}" openmpi-bin || return 0
    expect "0 1 2 3" "${openmpi[@]}" -n 4
}

mpich() {
    installed "${mpich[0]}" mpich || return 0
    expect "0 1 2 3" "${mpich[@]}" -n 4
}

torch() {
    command -v torchrun >/dev/null || {
        skip "there is no torchrun"
        return
    }
    expect "0 1 2 3" torchrun --standalone --nproc-per-node 4 --no-python
}

slurm() {
    installed slurmctld slurmctld slurmd slurm-client munge || return 0
    start_slurm
    local srun=(srun --nodes 2 --ntasks 4) # three tasks on the first node, one on the second
    expect "0 1 2 0" "${srun[@]}"
    expect "0 1 2 0" "${srun[@]}" --mpi=pmi2
    expect "0" salloc --quiet --nodes 2 --ntasks 4
    expect "0" salloc --quiet --nodes 2 --ntasks 4 srun --interactive --preserve-env # as for a shell on the first node
    expect "0 1 2 0" salloc --quiet --nodes 2 --ntasks 4 srun
    expect "0" "$work/batch"
    expect "0 1 2 0" "$work/batch" srun
    expect "0 0" "$work/batch" srun --ntasks 2
    expect "0" srun --ntasks 2 "$work/first" "$work/batch"
    command -v "${openmpi[0]}" >/dev/null && expect "0 1 2 0" "$work/batch" "${openmpi[@]}" -n 4
    command -v "${mpich[0]}" >/dev/null && expect "0 1 2 0" "$work/batch" "${mpich[@]}" -n 4
    return 0
}

# Two nodes without systemd and without cgroups, which listen on this machine's loopback only.
start_slurm() {
    local host port=$((20000 + $$ % 10000)) node cgroups=disabled
    host=$(hostname -s)
    head -c 128 /dev/urandom >"$work/munge.key"
    chmod 600 "$work/munge.key"
    chmod 755 "$work"
    # Up to 22.05, a plugin that is not used is in no one's way, and there is no `disabled`.
    [[ $(slurmd -V) == *" 2"[0-2].* ]] && cgroups=cgroup/v1
    echo "CgroupPlugin=$cgroups" >"$work/cgroup.conf"
    cat >"$work/slurm.conf" <<END
ClusterName=launchers
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmdSpoolDir=$work/%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerParameters=batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=one NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=4
NodeName=two NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=4
PartitionName=all Nodes=ALL Default=YES
END
    export SLURM_CONF=$work/slurm.conf
    mkdir "$work/state" "$work/one" "$work/two"
    step "slurmctld, and slurmd twice"
    munged --foreground --socket "$work/munge.socket" --key-file "$work/munge.key" --pid-file "$work/munged.pid" \
        --seed-file "$work/munged.seed" --log-file "$work/munged.log" &>/dev/null &
    started+=($!)
    slurmctld -D &>"$work/slurmctld.log" &
    started+=($!)
    for node in one two; do
        slurmd -D -N "$node" &>"$work/slurmd-$node.log" &
        started+=($!)
    done
    for _ in {1..150}; do
        [[ $(sinfo --noheader --states idle --format %D 2>"$work/sinfo.log") != 2 ]] || return 0
        sleep 0.2
    done
    cat "$work"/*.log
    return 1
}

step "one process alone"
mkdir "$work/0"
"$work/ranks" "$work/0"
together "$work"/0/* >"$work/alone"
# Two epochs of 16 batches of 60, and within an epoch no sample comes twice.
awk '
    { for (i = 5; i <= NF; i++) { total++; twice += seen[$2, $i]++ } }
    END { if (NR != 32 || total != 1920 || twice) { print NR, total, twice; exit 1 } }' "$work/alone"

launchers=("$@")
(($#)) || launchers=(openmpi mpich torch slurm)
for launcher in "${launchers[@]}"; do
    "$launcher"
done
((launches > 0)) || skip_all "no launcher is here"
note "$launches launches under ${launchers[*]}"
