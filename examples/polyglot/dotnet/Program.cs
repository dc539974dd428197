// An order service with EF Core: an order and its event are saved in one transaction.
//
//     DATABASE_URL='Host=…;Database=…' dotnet run -- PRODUCT UNITS

using System.Text.Json;
using Microsoft.EntityFrameworkCore;

await using var shop = new Shop();
await using var transaction = await shop.Database.BeginTransactionAsync();
await Place(shop, new Order { Product = args[0], Units = int.Parse(args[1]) });
await transaction.CommitAsync();

// Adds to the caller's transaction: the event exists if and only if the order does. An exception
// disposes of the transaction without a commit.
static async Task Place(Shop shop, Order order)
{
    shop.Orders.Add(order);
    await shop.SaveChangesAsync(); // the database assigns the id
    var payload = JsonSerializer.Serialize(new { order_id = order.Id, product = order.Product, units = order.Units });
    await shop.Database.ExecuteSqlAsync($"SELECT outbox_record('order', {order.Id.ToString()}, 'placed', {payload}::json)");
}

class Order
{
    public int Id { get; set; }
    public required string Product { get; init; }
    public int Units { get; init; }
}

class Shop : DbContext
{
    public DbSet<Order> Orders => Set<Order>();

    protected override void OnConfiguring(DbContextOptionsBuilder options) =>
        options.UseNpgsql(Environment.GetEnvironmentVariable("DATABASE_URL"));

    protected override void OnModelCreating(ModelBuilder model) =>
        model.Entity<Order>(order =>
        {
            order.ToTable("orders");
            order.Property(o => o.Id).HasColumnName("id");
            order.Property(o => o.Product).HasColumnName("product");
            order.Property(o => o.Units).HasColumnName("units");
        });
}
