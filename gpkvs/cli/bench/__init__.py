"""gpkvs bench: the speed of the engine and the server on this machine, beside other stores that promise the same."""

from __future__ import annotations

import typer

from gpkvs.cli.bench.disk import disk_command
from gpkvs.cli.bench.door import door_command
from gpkvs.cli.bench.engine import engine_command
from gpkvs.cli.bench.expiry import expiry_command
from gpkvs.cli.bench.gpm import gpm_command
from gpkvs.cli.bench.gpu import gpu_command
from gpkvs.cli.bench.growth import growth_command
from gpkvs.cli.bench.operations import operations_command
from gpkvs.cli.bench.paper import paper_command
from gpkvs.cli.bench.paths import paths_command
from gpkvs.cli.bench.redis import redis_command
from gpkvs.cli.bench.report import report_command
from gpkvs.cli.bench.scan import scan_command
from gpkvs.cli.bench.security import security_command
from gpkvs.cli.bench.server import server_command
from gpkvs.cli.bench.wear import wear_command
from gpkvs.cli.exit_status import EVERY

app = typer.Typer(
    name="bench",
    help="Measure the engine and the server beside other stores, and keep the figures.",
    epilog=EVERY,
    no_args_is_help=True,
)
app.command("engine")(engine_command)
app.command("operations")(operations_command)
app.command("server")(server_command)
app.command("disk")(disk_command)
app.command("wear")(wear_command)
app.command("expiry")(expiry_command)
app.command("growth")(growth_command)
app.command("scan")(scan_command)
app.command("security")(security_command)
app.command("door")(door_command)
app.command("redis")(redis_command)
app.command("gpu")(gpu_command)
app.command("gpm")(gpm_command)
app.command("paper")(paper_command)
app.command("paths")(paths_command)
app.command("report")(report_command)
