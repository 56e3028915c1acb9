# SPDX-License-Identifier: Apache-2.0
"""The rig by hand, behind `make up|sh|exec|down`.

    up [--machines 2]         start a machine in the background, wait for node 0; 2: two, on one wire
    sh [NODE]                 a shell on a node; b/1 is node 1 of the second machine
    exec NODE COMMAND         run a shell command there: its output, its status
    connect NODE PORT         stdin and stdout become a connection to a port of a node (rig.login)
    down                      end the machines
    boot --kernel F --initrd F [--append S] [--exec COMMAND] ...
                              one machine with these, console on stdout, until its end
"""

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
import tty
from pathlib import Path

from rig import link, login, relay
from rig.channel import ERROR, OUTPUT, Channel
from rig.errors import CommandTimeout, RigError
from rig.machine import Machine, MachineConfig
from rig.node import on_node
from rig.paths import RIG, UP
from rig.two import LETTERS, SUBNETS, at_wire, join_command
from rig.watch import watch
from rig.wire import Wire

READY = "test -e /run/mint/ready"


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"rig: {text}", file=sys.stderr, flush=True)


def up_folder(machine: int) -> Path:
    """Of a machine in the background."""
    return UP if machine == 0 else UP.with_name(f"{UP.name}-{LETTERS[machine]}")


def place(word: str) -> tuple[int, int]:
    """Which machine, and which of its nodes: 1, or b/1."""
    letter, _, node = word.rpartition("/")
    if letter not in ("", *LETTERS) or not node.isdecimal():
        raise argparse.ArgumentTypeError(f"{word}: want a node's number, or b/ and the number of one of the second machine")
    return LETTERS.index(letter or LETTERS[0]), int(node)


def attach(machine: int = 0) -> Channel:
    """Connect to a machine in the background; raises RigError if there is none."""
    stream = relay.connect(up_folder(machine))
    if stream is None:
        raise RigError(f"no {'second machine' if machine else 'rig'} runs in the background: make up{' MACHINES=2' * machine}")
    channel = relay.client_channel(stream)
    channel.wait_ready()
    return channel


def wait_node_ready(channel: Channel, limit_s: float = 300) -> None:
    """Wait until node 0's services answer."""
    end = time.monotonic() + limit_s
    while channel.start(READY).wait().status != 0:
        if time.monotonic() > end:
            raise RigError(f"node 0's libvirtd did not answer within {limit_s:g} s")
        time.sleep(0.3)


def up(options: argparse.Namespace) -> int:
    """make up"""
    if (stream := relay.connect(UP)) is not None:
        stream.close()
        if options.machines > 1:
            attach(1).close()
        say("runs already")
        say_ways()
        return 0
    RIG.mkdir(parents=True, exist_ok=True)
    log = RIG / f"{UP.name}.log"
    begin = time.monotonic()
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "rig.cli", "serve", *machine_words(options)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    say(f"starting {'the emulated server' if options.machines == 1 else 'two emulated servers'}")
    for machine in range(options.machines):
        folder = up_folder(machine)
        while (stream := relay.connect(folder)) is None:
            if server.poll() is not None:
                raise RigError(f"it did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)
        channel = relay.client_channel(stream)
        channel.wait_ready()
        wait_node_ready(channel)
        name = "node 0" if machine == 0 else f"node {LETTERS[machine]}/0"
        say(f"{name} is ready after {time.monotonic() - begin:.1f} s; consoles: {folder}/console.*.log")
        if options.machines > 1 and (joined := channel.start(join_command(machine)).wait()).status != 0:
            raise RigError(f"{name} is not on the wire: {joined.err}")
    say_ways()
    return 0


def say_ways() -> None:
    """What a machine in the background is good for."""
    say(f"from this host: {login.folder() / login.COMMAND} node0 | virsh -c '{login.uri(0, 0)}' list")
    say("next: make sh | make exec NODE=0 CMD='mintctl node list' | make down")


def machine_words(options: argparse.Namespace) -> list[str]:
    """What `up` hands on to `serve`."""
    words = ["--flavour", options.flavour, f"--mint={options.mint}", f"--append={options.append}"]
    return [*words, f"--machines={options.machines}"]


def serve(options: argparse.Namespace) -> int:
    """The process that `up` leaves in the background."""
    keys = login.prepare(options.machines)
    config = MachineConfig(UP.name, mint=options.mint, flavour=options.flavour, append=options.append, keys=keys)
    configs = [config]
    if options.machines > 1:
        wire = Wire()
        configs = [at_wire(config, wire, number, up_folder(number).name) for number in range(options.machines)]
    with contextlib.ExitStack() as machines:
        started = [machines.enter_context(Machine(each)) for each in configs]
        for machine in started:
            watch(machine)
        relay.serve(*started)
        lost = [machine.why_over() for machine in started if not machine.alive()]
        for why in lost:
            print(why, flush=True)
    return 1 if lost else 0


def down(_options: argparse.Namespace) -> int:
    """make down"""
    stream = relay.connect(UP)
    if stream is None:
        say("no rig runs in the background")
        return 0
    stream.sendall(relay.frame(relay.QUIT))
    while stream.recv(4096):  # it closes with the process, after QEMU's end
        pass
    say("down")
    return 0


def run_command(options: argparse.Namespace) -> int:
    """make exec"""
    command = options.command or os.environ.get("CMD", "")
    if not command:
        say("which command? make exec NODE=n CMD='…'")
        return 2
    machine, node = options.node
    take_input = not sys.stdin.isatty()
    return run(attach(machine), on_node(node, command, take_input), take_input)


def connect(options: argparse.Namespace) -> int:
    """For ssh's ProxyCommand."""
    machine, node = options.node
    return run(attach(machine), login.connect_command(machine, node, options.port), take_input=True)


def run(channel: Channel, command: str, take_input: bool) -> int:
    """On node 0, with our standard streams; gives its status."""
    job = channel.start(command, limit_s=0, keep_input=take_input)
    if take_input:
        feed_from_stdin(job)
    for kind, data in job.frames():
        stream = sys.stdout if kind == OUTPUT else sys.stderr
        stream.buffer.write(data)
        stream.flush()
    return job.result.status


def feed_from_stdin(job) -> None:
    """Copy our stdin to the job's, in a thread."""

    def copy() -> None:
        while data := os.read(0, 65536):
            job.input(data)
        job.end_input()

    threading.Thread(target=copy, daemon=True).start()


def shell(options: argparse.Namespace) -> int:
    """make sh"""
    term = shlex.quote(os.environ.get("TERM", "vt100"))
    machine, node = options.node
    if node == 0:
        command = f"cd /root; TERM={term} exec bash -l"
    else:
        command = f"TERM={term} exec ssh -t {link.address(node, SUBNETS[machine])}"
    channel = attach(machine)
    if not sys.stdin.isatty():
        say("no terminal here: use make exec")
        return 2
    job = channel.start(command, limit_s=0, keep_input=True, terminal=True)

    def resize(*_signal) -> None:
        size = shutil.get_terminal_size()
        job.resize(size.lines, size.columns)

    before = termios.tcgetattr(0)
    signal.signal(signal.SIGWINCH, resize)
    resize()
    feed_from_stdin(job)
    try:
        tty.setraw(0)
        for _, data in job.frames():
            os.write(1, data)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
    return job.result.status


def boot(options: argparse.Namespace) -> int:
    """One machine by hand: for work on kernels and images."""
    config = MachineConfig(
        options.name,
        mint=options.mint,
        append=options.append,
        kernel=options.kernel,
        flavour=options.flavour,
        initrd=options.initrd,
        disks=not options.blank_disks,
        extra=tuple(shlex.split(options.qemu)),
    )
    end = time.monotonic() + options.limit_s
    with Machine(config) as machine:
        watch(machine)
        shown = [0] * len(machine.console)
        jobs = [machine.channel.start(command, limit_s=0) for command in options.exec]
        status = None
        while time.monotonic() < end and machine.alive() and status is None:
            for n, console in enumerate(machine.console):
                data = console.raw(shown[n])
                whole = data[: data.rfind(b"\n") + 1]
                shown[n] += len(whole)
                for line in whole.decode(errors="replace").splitlines():
                    print(f"N{n}| {line}", flush=True)
            for job in list(jobs):
                try:
                    for kind, data in job.frames(0):
                        print({OUTPUT: "out| ", ERROR: "err| "}[kind] + data.decode(errors="replace"), end="")
                except CommandTimeout:
                    continue
                print(f"status {job.result.status}, {job.result.seconds:.2f} s: {job.command}", flush=True)
                jobs.remove(job)
            if options.exec and not jobs:
                status = 0
            time.sleep(0.1)
        if not machine.alive():
            say(machine.why_over().splitlines()[0])
        return 1 if status is None else status


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("rig", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("down").set_defaults(function=down)
    for name, function in (("up", up), ("serve", serve), ("boot", boot)):
        command = commands.add_parser(name)
        command.add_argument("--flavour", default="mint", help="of node 0's kernel")
        command.add_argument("--mint", default=MachineConfig.mint, help="'' boots without mint=")
        command.add_argument("--append", default="", help="more of the kernel's command line")
        if name != "boot":
            command.add_argument("--machines", type=int, choices=(1, 2), default=1, help="2: on one wire")
        command.set_defaults(function=function)
    command = commands.add_parser("sh")
    command.add_argument("node", type=place, nargs="?", default="0", help="1; b/1 is one of the second machine")
    command.set_defaults(function=shell)
    command = commands.add_parser("exec")
    command.add_argument("node", type=place, help="1; b/1 is one of the second machine")
    command.add_argument("command", nargs="?", help="default: the environment's CMD")
    command.set_defaults(function=run_command)
    command = commands.add_parser("connect")
    command.add_argument("node", type=place, help="1; b/1 is one of the second machine")
    command.add_argument("port", type=int)
    command.set_defaults(function=connect)
    command = commands.choices["boot"]
    command.add_argument("--name", default="boot", help="folder below build/rig")
    command.add_argument("--kernel", type=Path, help="bzImage (default: the flavour's)")
    command.add_argument("--initrd", type=Path, help="default: the node's")
    command.add_argument("--blank-disks", action="store_true", help="no node image on the disks")
    command.add_argument("--qemu", default="", help="more of QEMU's command line")
    command.add_argument("--exec", action="append", default=[], help="run it on node 0 (several: at a time), then end")
    command.add_argument("--limit-s", type=float, default=300)
    return parser.parse_args(words)


def main() -> int:
    """Entry point; exit status as the command's, 1 failed, 2 usage."""
    options = parse(sys.argv[1:])
    try:
        return options.function(options)
    except (RigError, FileNotFoundError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
