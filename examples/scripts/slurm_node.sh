#!/usr/bin/env bash
# Start Ray on a node of a Slurm job: slurm_node.sh HEAD_ADDRESS [ARGUMENT of `ray start` ...]. slurm.sbatch calls it.
#
# It raises limits, and refuses limits with which Ray or NCCL fails. It keeps the caches of compiled kernels on the node,
# because nodes that compile into a shared home wait for each other. NCCL takes the network interface that Ray takes.
# slurm.sbatch explains INTERFACE and CACHES.
set -euo pipefail

head=${1:?the address of the Ray head}
shift
refuse() {
    echo "slurm_node.sh: $(hostname): $*" >&2
    exit 1
}

# Slurm hands the limits of the shell that called sbatch to each step, up to the hard limits of slurmd.
remedy="raise it in slurmd's unit, or set PropagateResourceLimitsExcept=NOFILE,MEMLOCK in slurm.conf"
ulimit -Sn "${OPEN_FILES:-65536}" 2>/dev/null || ulimit -Sn "$(ulimit -Hn)"
files=$(ulimit -Sn)
[ "$files" = unlimited ] || [ "$files" -ge 8192 ] ||
    refuse "open files (ulimit -n) must be at least 8192, as Ray opens thousands: got $files, the hard limit; $remedy"
ulimit -Sl unlimited 2>/dev/null || ulimit -Sl "$(ulimit -Hl)"
locked=$(ulimit -Sl)
fabric=$(ls "${INFINIBAND:-/sys/class/infiniband}" 2>/dev/null || true)
[ "$locked" = unlimited ] || [ -z "$fabric" ] || [ "${NODES:-1}" = 1 ] ||
    refuse "locked memory (ulimit -l) must be unlimited for NCCL over InfiniBand: got $locked KiB, the hard limit; $remedy"

caches=${CACHES:-/tmp/shear_$(id -u)}
mkdir -p -m 700 "$caches"
[ -O "$caches" ] || refuse "CACHES must be a folder of yours, as runs load code from it: got $caches, of another user"
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$caches/triton} VLLM_CACHE_ROOT=${VLLM_CACHE_ROOT:-$caches/vllm}
export FLASHINFER_WORKSPACE_BASE=${FLASHINFER_WORKSPACE_BASE:-$caches}
# A folder for each start, because a build that is killed leaves a lock, for which every later rank waits.
extensions=$caches/torch_extensions_${SLURM_JOB_ID:-0}_${SLURM_RESTART_COUNT:-0}
export TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$extensions}

# The address on INTERFACE, else the address from which this node reaches the head; and the interface of that address.
read -r address interface < <(python - "$head" "${INTERFACE:-}" <<'PYTHON'
import socket
import sys

import psutil

head, wanted = sys.argv[1:]
found = {}
for name, addresses in psutil.net_if_addrs().items():
    found[name] = [each.address for each in addresses if each.family == socket.AF_INET]
if wanted:
    print(next(iter(found.get(wanted, [])), "-"), wanted)
else:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((head, 1))
        mine = probe.getsockname()[0]
    print(mine, next((name for name, addresses in found.items() if mine in addresses), "-"))
PYTHON
)
[ "$address" != - ] || refuse "INTERFACE has no IPv4 address here: got $interface; ip -4 addr lists interfaces"
if [ "$interface" != - ]; then
    # "=" is for an exact match: NCCL would take eth1 for eth10 too.
    export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-=$interface} GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$interface}
fi
echo "slurm_node.sh: $(hostname): address $address, interface ${NCCL_SOCKET_IFNAME:-chosen by NCCL}, $files open files," \
    "locked memory $locked, caches in $caches" >&2
case "${INTERFACE:+chosen} $* " in
    *" --node-ip-address "*) ;;
    chosen*) set -- --node-ip-address "$address" "$@" ;; # else Ray itself takes the address that reaches the head
esac
exec ray start "$@"
